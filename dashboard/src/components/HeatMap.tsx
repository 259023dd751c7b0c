import { useEffect, useRef, useState, type KeyboardEvent, type PointerEvent } from "react";
import { heatColour, heatRange } from "../lib/heat";
import { readToken, useTheme } from "../lib/theme";

interface HeatMapProps {
  label: string;
  rows: readonly string[];
  columns: readonly string[];
  /** rows[r] at columns[c]; null where nothing was measured. */
  value: (row: number, column: number) => number | null;
  format: (value: number | null) => string;
  /** Changes when a value does. */
  version: number | string;
}

const MAX_ROW_PX = 18;
const MAX_HEIGHT_PX = 320;

/** Ranks by time on a canvas of our own: 1,000 rows are one picture. Arrow keys move through it cell by cell. */
export function HeatMap({ label, rows, columns, value, format, version }: HeatMapProps) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const [width, setWidth] = useState(0);
  const [cell, setCell] = useState<{ row: number; column: number } | null>(null);
  const { isDark } = useTheme();
  const height = Math.max(24, Math.min(MAX_HEIGHT_PX, rows.length * MAX_ROW_PX));
  const range = heatRange(allValues(rows.length, columns.length, value));

  useEffect(() => {
    const element = canvas.current?.parentElement;
    if (!element) return;
    const watching = new ResizeObserver(() => setWidth(element.clientWidth));
    watching.observe(element);
    return () => watching.disconnect();
  }, []);

  useEffect(() => {
    const element = canvas.current;
    const context = element?.getContext("2d");
    if (!element || !context || width === 0) return;
    element.width = width * devicePixelRatio;
    element.height = height * devicePixelRatio;
    context.scale(devicePixelRatio, devicePixelRatio);
    const none = readToken("--heat-none");
    const cellWidth = width / Math.max(1, columns.length);
    const cellHeight = height / Math.max(1, rows.length);
    const gap = cellHeight > 6 ? 1 : 0;
    for (let row = 0; row < rows.length; row += 1) {
      for (let column = 0; column < columns.length; column += 1) {
        const known = value(row, column);
        context.fillStyle = known === null || !range ? none : heatColour((known - range[0]) / (range[1] - range[0]), isDark);
        context.fillRect(column * cellWidth, row * cellHeight, Math.max(1, cellWidth - (cellWidth > 4 ? 1 : 0)) + (cellWidth > 4 ? 0 : 0.5), cellHeight - gap + (gap ? 0 : 0.5));
      }
    }
    if (cell) {
      context.strokeStyle = readToken("--text");
      context.lineWidth = 2;
      context.strokeRect(cell.column * cellWidth, cell.row * cellHeight, Math.max(4, cellWidth), Math.max(4, cellHeight));
    }
    // eslint-disable-next-line react-hooks/exhaustive-deps -- version stands for value and range
  }, [rows, columns, version, width, height, cell, isDark]);

  const point = (event: PointerEvent<HTMLCanvasElement>) => {
    const box = event.currentTarget.getBoundingClientRect();
    const column = Math.floor(((event.clientX - box.left) / box.width) * columns.length);
    const row = Math.floor(((event.clientY - box.top) / box.height) * rows.length);
    if (row >= 0 && row < rows.length && column >= 0 && column < columns.length) setCell({ row, column });
  };
  const press = (event: KeyboardEvent) => {
    const moves: Record<string, [number, number]> = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    const move = moves[event.key];
    if (!move) return;
    event.preventDefault();
    setCell((old) => ({
      row: Math.min(rows.length - 1, Math.max(0, (old ? old.row + move[0] : 0))),
      column: Math.min(columns.length - 1, Math.max(0, (old ? old.column + move[1] : columns.length - 1))),
    }));
  };
  const chosen = cell && cell.row < rows.length && cell.column < columns.length ? cell : null;
  return (
    <div className="heat">
      <div className="heat-box">
        <canvas
          ref={canvas}
          tabIndex={0}
          role="img"
          aria-label={`${label}. ${rows.length} rows, ${columns.length} columns. Arrow keys read single cells.`}
          style={{ height, width: "100%" }}
          onPointerMove={point}
          onPointerLeave={() => setCell(null)}
          onKeyDown={press}
          onBlur={() => setCell(null)}
        />
      </div>
      <div className="heat-foot">
        <span aria-live="polite" className="heat-readout">
          {chosen ? (
            <>
              <b>{rows[chosen.row]}</b> · {columns[chosen.column]} · {format(value(chosen.row, chosen.column))}
            </>
          ) : (
            <span className="muted">
              {columns[0]} to {columns.at(-1)}; point at a cell to read it
            </span>
          )}
        </span>
        {range ? (
          <span className="heat-scale">
            {format(range[0])}
            <span className="heat-ramp" aria-hidden="true">
              {[0, 0.2, 0.4, 0.6, 0.8, 1].map((share) => (
                <span key={share} style={{ background: heatColour(share, isDark) }} />
              ))}
            </span>
            {format(range[1])}
            {range[2] > range[1] ? " and more" : null}
          </span>
        ) : null}
      </div>
    </div>
  );
}

function* allValues(rows: number, columns: number, value: (row: number, column: number) => number | null): Generator<number | null> {
  for (let row = 0; row < rows; row += 1) for (let column = 0; column < columns; column += 1) yield value(row, column);
}
