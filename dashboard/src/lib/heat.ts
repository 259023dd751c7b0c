// Colours and cells of the heat map, without a canvas: what is tested is what is drawn.

type Colour = readonly [number, number, number];

// Ordered by lightness alone, so they stay ordered for colour-blind eyes and in grey. What is usual is close to the
// background in both themes, and what is slow stands out from it.
const ON_LIGHT: readonly Colour[] = [
  [226, 236, 246],
  [190, 208, 228],
  [226, 176, 74],
  [203, 118, 24],
  [134, 52, 10],
];
const ON_DARK: readonly Colour[] = [
  [32, 46, 61],
  [48, 74, 104],
  [138, 106, 44],
  [224, 154, 45],
  [255, 226, 146],
];

export function heatColour(share: number, isDark: boolean): string {
  const stops = isDark ? ON_DARK : ON_LIGHT;
  const place = Math.min(1, Math.max(0, share)) * (stops.length - 1);
  const index = Math.min(stops.length - 2, Math.floor(place));
  const low = stops[index] ?? [0, 0, 0];
  const high = stops[index + 1] ?? low;
  const part = place - index;
  const channel = (which: 0 | 1 | 2) => Math.round(low[which] + (high[which] - low[which]) * part);
  return `rgb(${channel(0)} ${channel(1)} ${channel(2)})`;
}

// Usual values are calm: a scale that ends before this many times the median would paint noise, and the first steps,
// which take ten times as long, must not hide a rank that is twice as slow.
const LEAST_RATIO = 1.25;
const MOST_RATIO = 3;

/** The range of the scale, and the largest value, which may lie beyond it. */
export function heatRange(values: Iterable<number | null>): [low: number, high: number, most: number] | null {
  const known = [...values].filter((value): value is number => value !== null && Number.isFinite(value)).sort((a, b) => a - b);
  const [low, most, middle] = [known[0], known.at(-1), median(known)];
  const high = known[Math.min(known.length - 1, Math.floor(known.length * 0.99))];
  if (low === undefined || most === undefined || high === undefined || middle === null) return null;
  if (middle <= 0) return [low, high > low ? high : low + 1, most];
  return [low, Math.min(Math.max(high, LEAST_RATIO * middle), MOST_RATIO * middle), most];
}

export function median(values: readonly number[]): number | null {
  if (values.length === 0) return null;
  const sorted = [...values].sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  const upper = sorted[middle] ?? 0;
  return sorted.length % 2 === 1 ? upper : ((sorted[middle - 1] ?? 0) + upper) / 2;
}
