import { useVirtualizer } from "@tanstack/react-virtual";
import { useMemo, useRef, type ReactNode } from "react";
import { sortRows, type Sort } from "../lib/rows";

export interface Column<Row> {
  key: string;
  title: string;
  /** The least width in pixels, and the share of what is left over; 0 for none of it. */
  width: number;
  grow?: number;
  cell: (row: Row) => ReactNode;
  /** What rows are sorted by; a column without it cannot be sorted. */
  order?: (row: Row) => number | string | null;
  align?: "right";
}

interface DataTableProps<Row> {
  label: string;
  rows: readonly Row[];
  columns: readonly Column<Row>[];
  keyOf: (row: Row) => string;
  sort: Sort;
  onSort: (sort: Sort) => void;
  isMarked?: (row: Row) => boolean;
  empty: ReactNode;
  /** The height beyond which the rows scroll in their own box. */
  maxHeight?: string;
}

const ROW_PX = 34;

/** A table of any length: only the rows in view are in the page, and each says which row of how many it is. */
export function DataTable<Row>({ label, rows, columns, keyOf, sort, onSort, isMarked, empty, maxHeight = "70vh" }: DataTableProps<Row>) {
  const box = useRef<HTMLDivElement>(null);
  const sorted = useMemo(() => {
    const order = columns.find((column) => column.key === sort.key)?.order;
    return order ? sortRows(rows, order, sort.isDescending) : [...rows];
  }, [rows, columns, sort]);
  // The library keeps its own mutable state, which the compiler of React could not follow; nothing here is compiled.
  // eslint-disable-next-line react-hooks/incompatible-library
  const virtual = useVirtualizer({ count: sorted.length, getScrollElement: () => box.current, estimateSize: () => ROW_PX, overscan: 12 });
  const template = { gridTemplateColumns: columns.map(({ width, grow = 0 }) => (grow > 0 ? `minmax(${width}px, ${grow}fr)` : `${width}px`)).join(" ") };
  const minWidth = columns.reduce((sum, column) => sum + column.width, 0);
  return (
    <div className="table-box" ref={box} style={{ maxHeight }} tabIndex={0} role="region" aria-label={`${label}, scrollable`}>
      <div role="table" aria-label={label} aria-rowcount={sorted.length + 1} className="table" style={{ minWidth }}>
        <div role="rowgroup" className="table-head">
          <div role="row" aria-rowindex={1} className="table-row" style={template}>
            {columns.map((column) => (
              <div key={column.key} role="columnheader" aria-sort={sortOf(column, sort)} className={column.align === "right" ? "cell right" : "cell"}>
                {column.order ? (
                  <button type="button" className="sort" onClick={() => onSort({ key: column.key, isDescending: sort.key === column.key && !sort.isDescending })}>
                    {column.title}
                    <span aria-hidden="true" className="sort-mark">
                      {sort.key === column.key ? (sort.isDescending ? "↓" : "↑") : ""}
                    </span>
                  </button>
                ) : (
                  column.title
                )}
              </div>
            ))}
          </div>
        </div>
        <div role="rowgroup" style={{ height: virtual.getTotalSize(), position: "relative" }}>
          {virtual.getVirtualItems().map((item) => {
            const row = sorted[item.index];
            if (row === undefined) return null;
            return (
              <div
                key={keyOf(row)}
                role="row"
                aria-rowindex={item.index + 2}
                className={`table-row table-line ${isMarked?.(row) ? "is-marked" : ""}`}
                style={{ ...template, height: ROW_PX, transform: `translateY(${item.start}px)` }}
              >
                {columns.map((column) => (
                  <div key={column.key} role="cell" className={column.align === "right" ? "cell right" : "cell"}>
                    {column.cell(row)}
                  </div>
                ))}
              </div>
            );
          })}
        </div>
      </div>
      {sorted.length === 0 ? <div className="table-empty">{empty}</div> : null}
    </div>
  );
}

function sortOf<Row>(column: Column<Row>, sort: Sort): "ascending" | "descending" | "none" | undefined {
  if (!column.order) return undefined;
  if (sort.key !== column.key) return "none";
  return sort.isDescending ? "descending" : "ascending";
}
