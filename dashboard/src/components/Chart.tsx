import { useEffect, useMemo, useRef, useState } from "react";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { hasValues } from "../lib/align";
import { formatClock, formatDuration, formatMoment, formatValue } from "../lib/format";
import type { Tone } from "../lib/states";
import { readToken, useTheme } from "../lib/theme";
import { Glyph } from "./Badge";
import { Name } from "./Name";

export interface Line {
  label: string;
  /** One value for each x; null where nothing was measured, which is a gap in the line. */
  values: readonly (number | null)[];
  colour?: string;
  dashed?: boolean;
}

/** Something that happened, drawn as a line across the time axis. */
export interface Mark {
  at: number;
  label: string;
  tone: Tone;
}

interface ChartProps {
  title: string;
  x: readonly number[];
  /** What x is: seconds since 1970, or since a job began. */
  axis?: "time" | "elapsed";
  lines: readonly Line[];
  format?: (value: number | null | undefined) => string;
  marks?: readonly Mark[];
  height?: number;
  /** Charts of one group share their cursor. */
  group?: string;
  zero?: boolean;
  /** Draw through what is null: for lines that were measured at different times. */
  joined?: boolean;
}

const COLOURS = ["--c1", "--c2", "--c3", "--c4", "--c5", "--c6"];
const NO_MARKS: readonly Mark[] = [];
// Workers report every few seconds, so an interval without a report is no gap; this many from one value to the next are.
const REACH = 3;

/** Lines over time or steps, with marks; what it shows is also there as text. */
export function Chart({ title, x, axis = "time", lines, format = formatValue, marks = NO_MARKS, height = 150, group, zero = false, joined = false }: ChartProps) {
  const host = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const marksNow = useRef(marks);
  const formatNow = useRef(format);
  const [at, setAt] = useState<number | null>(null);
  const { isDark } = useTheme();
  const shape = JSON.stringify([axis, height, group, zero, lines.map((line) => [line.colour, line.dashed])]);
  const data = useMemo(() => [[...x], ...lines.map((line) => [...line.values])] as uPlot.AlignedData, [x, lines]);
  const dataNow = useRef(data);
  const isEmpty = !lines.some((line) => hasValues(line.values));

  useEffect(() => {
    marksNow.current = marks;
    // An axis without values has no numbers: they would be made up.
    formatNow.current = isEmpty ? () => "" : format;
    dataNow.current = data;
    plot.current?.setData(data);
  }, [data, marks, format, isEmpty]);

  useEffect(() => {
    const element = host.current;
    if (!element) return;
    const [, , , , styles] = JSON.parse(shape) as [string, number, string | null, boolean, [string | null, boolean | null][]];
    const stroke = readToken("--text-3");
    const grid = { stroke: readToken("--line"), width: 1 };
    const font = `11px ${readToken("--font")}`;
    const made = new uPlot(
      {
        width: Math.max(120, element.clientWidth),
        height,
        legend: { show: false },
        padding: [8, 8, 0, 0],
        cursor: { y: false, points: { size: 6 }, drag: { x: false, y: false }, ...(group ? { sync: { key: group } } : {}) },
        scales: { x: { time: axis === "time" }, y: { range: (_, low, high) => rangeOf(low, high, zero) } },
        axes: [
          { stroke, font, grid, ticks: { ...grid, size: 4 }, size: 26, space: 70, values: (_: uPlot, ticks: number[]) => ticks.map(axis === "time" ? formatTick(ticks) : formatDuration) },
          { stroke, font, grid, ticks: { show: false }, size: 58, space: 32, values: (_, ticks) => ticks.map((tick) => formatNow.current(tick)) },
        ],
        series: [
          {},
          ...styles.map(([colour, dashed], index) => ({
            stroke: readToken(colour ?? COLOURS[index % COLOURS.length] ?? "--c1"),
            width: 1.75,
            // A value between two gaps has no line, and would not be seen.
            points: { show: true, size: 4, filter: (self: uPlot, series: number) => lonePoints(self.data[series] ?? [], joined ? Infinity : REACH) },
            spanGaps: joined,
            gaps: (self: uPlot, _: number, _from: number, _to: number, gaps: uPlot.Series.Gaps) => gaps.filter(([from, to]) => to - from > REACH * intervalPx(self) * 1.01),
            ...(dashed ? { dash: [5, 4] } : {}),
          })),
        ],
        hooks: {
          setCursor: [(self) => setAt(self.cursor.idx ?? null)],
          draw: [(self) => drawMarks(self, marksNow.current)],
        },
      },
      dataNow.current,
      element,
    );
    plot.current = made;
    const resizing = new ResizeObserver(() => made.setSize({ width: Math.max(120, element.clientWidth), height }));
    resizing.observe(element);
    return () => {
      resizing.disconnect();
      made.destroy();
      plot.current = null;
    };
  }, [shape, axis, height, group, zero, joined, isDark]);

  const shown = at !== null && at < x.length ? at : null;
  return (
    <figure className="chart">
      <figcaption className="chart-head">
        <span className="chart-title">
          <Name>{title}</Name>
        </span>
        <span className="chart-legend">
          {lines.map((line, index) => (
            <span key={index} className="chart-key">
              <span className={line.dashed ? "swatch-line swatch-dashed" : "swatch-line"} style={{ color: `var(${line.colour ?? COLOURS[index % COLOURS.length] ?? "--c1"})` }} aria-hidden="true" />
              {lines.length > 1 || line.label !== title ? (
                <>
                  <Name>{line.label}</Name>{" "}
                </>
              ) : null}
              <b>{format(shown === null ? lastOf(line.values) : line.values[shown])}</b>
            </span>
          ))}
          <span className="chart-at muted">{shown === null ? "latest" : axis === "time" ? formatClock(x[shown]) : formatDuration(x[shown])}</span>
        </span>
      </figcaption>
      <div className={isEmpty ? "chart-canvas is-empty" : "chart-canvas"} ref={host} role="img" aria-label={describe(title, lines, format, marks)} style={{ height }} />
    </figure>
  );
}

/** The marks of a chart as a list: what cannot be hovered can be read. */
export function MarkList({ marks }: { marks: readonly Mark[] }) {
  if (marks.length === 0) return null;
  return (
    <ul className="mark-list" aria-label="Marks on the time axis">
      {marks.slice(-8).map((mark, index) => (
        <li key={index}>
          <Glyph tone={mark.tone} /> <span className="muted">{formatMoment(mark.at)}</span> <Name>{mark.label}</Name>
        </li>
      ))}
    </ul>
  );
}

function drawMarks(self: uPlot, marks: readonly Mark[]): void {
  const context = self.ctx;
  const { left, top, width, height } = self.bbox;
  context.save();
  for (const mark of marks) {
    const x = self.valToPos(mark.at, "x", true);
    if (x < left || x > left + width) continue;
    context.strokeStyle = context.fillStyle = readToken(`--${mark.tone}`);
    context.lineWidth = devicePixelRatio;
    context.setLineDash(mark.tone === "bad" ? [] : [3 * devicePixelRatio, 3 * devicePixelRatio]);
    context.beginPath();
    context.moveTo(x, top);
    context.lineTo(x, top + height);
    context.stroke();
    const size = 4 * devicePixelRatio;
    context.beginPath();
    context.moveTo(x - size, top - size);
    context.lineTo(x + size, top - size);
    context.lineTo(x, top + size / 2);
    context.fill();
  }
  context.restore();
}

export function rangeOf(low: number | null, high: number | null, zero: boolean): [number, number] {
  if (low === null || high === null || !Number.isFinite(low) || !Number.isFinite(high)) return [0, 1];
  const from = zero ? Math.min(0, low) : low;
  const room = (high - from || Math.abs(high) || 1) * 0.08;
  return [zero && from === 0 ? 0 : from - room, high + room];
}

/** The places of values that no line reaches: the next known ones are further away than that. */
export function lonePoints(values: ArrayLike<number | null | undefined>, reach: number): number[] {
  const known = Array.from({ length: values.length }, (_, index) => index).filter((index) => values[index] !== null && values[index] !== undefined);
  const isNear = (one: number, other: number | undefined) => other !== undefined && Math.abs(one - other) <= reach;
  return known.filter((place, index) => !isNear(place, known[index - 1]) && !isNear(place, known[index + 1]));
}

/** How wide one interval of the x axis is, in the canvas' pixels. */
function intervalPx(self: uPlot): number {
  const [first, second] = self.data[0];
  return first === undefined || second === undefined ? 0 : self.valToPos(second, "x", true) - self.valToPos(first, "x", true);
}

function formatTick(ticks: number[]): (at: number) => string {
  const apart = (ticks[1] ?? 60) - (ticks[0] ?? 0);
  return (at) => (apart >= 60 ? formatClock(at).slice(0, 5) : formatClock(at));
}

function lastOf(values: readonly (number | null)[]): number | null {
  for (let index = values.length - 1; index >= 0; index -= 1) {
    const value = values[index];
    if (value !== null && value !== undefined) return value;
  }
  return null;
}

function describe(title: string, lines: readonly Line[], format: (value: number | null) => string, marks: readonly Mark[]): string {
  const parts = lines.map((line) => {
    const known = line.values.filter((value): value is number => value !== null);
    if (known.length === 0) return `${line.label}: nothing measured`;
    const low = known.reduce((a, b) => Math.min(a, b), Infinity);
    const high = known.reduce((a, b) => Math.max(a, b), -Infinity);
    return `${line.label}: latest ${format(known.at(-1) ?? null)}, lowest ${format(low)}, highest ${format(high)}`;
  });
  const marked = marks.length > 0 ? ` ${marks.length} marks.` : "";
  return `Chart of ${title}. ${parts.join("; ")}.${marked}`;
}
