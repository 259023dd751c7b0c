export interface Sort {
  key: string;
  isDescending: boolean;
}

const names = new Intl.Collator("en", { numeric: true });

/** Sort without changing the argument; what is not known comes last in both directions, and equals keep their order. */
export function sortRows<Row>(rows: readonly Row[], order: (row: Row) => number | string | null, isDescending: boolean): Row[] {
  const sign = isDescending ? -1 : 1;
  return rows
    .map((row, index) => ({ row, index, by: order(row) }))
    .sort((a, b) => {
      if (a.by === null || b.by === null) return a.by === b.by ? a.index - b.index : a.by === null ? 1 : -1;
      const difference = typeof a.by === "number" && typeof b.by === "number" ? a.by - b.by : names.compare(String(a.by), String(b.by));
      return difference === 0 ? a.index - b.index : sign * difference;
    })
    .map(({ row }) => row);
}

/** Whether every word of the search is somewhere in one of the texts. */
export function matches(search: string, ...texts: (string | null | undefined)[]): boolean {
  const words = search.toLowerCase().split(/\s+/).filter(Boolean);
  const hay = texts.filter((text) => typeof text === "string").join("\n").toLowerCase();
  return words.every((word) => hay.includes(word));
}
