import type { Series } from "../api/types";

// Workers report four times a lease of ten seconds, and each at another moment.
const REPORTED_S = 3;

/** Leave out intervals of which some workers have not reported yet: half of one would look like a sudden drop. */
export function dropOpenInterval(series: Series, nowS: number): Series {
  const count = series.at_s.length;
  const kept = series.at_s.filter((at) => at + series.resolution_s / 2 <= nowS - REPORTED_S).length;
  if (kept === count) return series;
  const cut = (values: unknown): unknown => (Array.isArray(values) && values.length === count ? values.slice(0, kept) : values);
  const cutAll = <Lists extends object>(lists: Lists): Lists => Object.fromEntries(Object.entries(lists).map(([name, values]) => [name, cut(values)])) as Lists;
  return { ...cutAll(series), parts: cutAll(series.parts), metrics: cutAll(series.metrics), marks: series.marks };
}
