import type { Dataset } from "../api/types";

export interface Balance {
  workers: number;
  shards: number;
  fewest: number;
  most: number;
}

/** How evenly shards are dealt; null for a dataset of which no shard belongs to one worker. */
export function balanceOf(dataset: Dataset): Balance | null {
  const counts = dataset.shards.map((each) => each.shards);
  if (counts.length === 0) return null;
  return {
    workers: counts.length,
    shards: counts.reduce((sum, count) => sum + count, 0),
    fewest: counts.reduce((a, b) => Math.min(a, b), Infinity),
    most: counts.reduce((a, b) => Math.max(a, b), 0),
  };
}
