// Numbers as people read them: always with their unit, always of the same width where they change.

export const NONE = "–";

const counts = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

export function formatCount(value: number | null | undefined): string {
  return isNumber(value) ? counts.format(value) : NONE;
}

/** A measured value with three significant digits; large ones in full. */
export function formatValue(value: number | null | undefined): string {
  if (!isNumber(value)) return NONE;
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size >= 1000) return counts.format(value);
  if (size >= 100) return value.toFixed(0);
  if (size >= 10) return value.toFixed(1);
  if (size >= 1) return value.toFixed(2);
  if (size >= 0.001) return value.toPrecision(3);
  return value.toExponential(1);
}

export function formatRate(value: number | null | undefined, unit: string): string {
  return isNumber(value) ? `${formatValue(value)} ${unit}` : NONE;
}

/** A share as a percentage. It never says 100 % or 0 % of what is not all or nothing. */
export function formatShare(share: number | null | undefined): string {
  if (!isNumber(share)) return NONE;
  const percent = share * 100;
  if (percent > 0 && percent < 0.1) return "<0.1 %";
  if (percent < 100 && percent >= 99.95) return ">99.9 %";
  return `${percent.toFixed(1)} %`;
}

const BYTE_UNITS = ["B", "kB", "MB", "GB", "TB", "PB"];

export function formatBytes(bytes: number | null | undefined): string {
  if (!isNumber(bytes)) return NONE;
  let value = bytes;
  let unit = 0;
  while (Math.abs(value) >= 1000 && unit < BYTE_UNITS.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${unit === 0 ? counts.format(value) : formatValue(value)} ${BYTE_UNITS[unit] ?? ""}`;
}

export function formatSpeed(bytesPerS: number | null | undefined): string {
  return isNumber(bytesPerS) ? `${formatBytes(bytesPerS)}/s` : NONE;
}

/** A length of time: 4.2 ms, 1.8 s, 3 min 05 s, 25 min, 2 h 10 min, 4 d 06 h. */
export function formatDuration(seconds: number | null | undefined): string {
  if (!isNumber(seconds)) return NONE;
  if (seconds < 0) return `−${formatDuration(-seconds)}`;
  if (seconds === 0) return "0 s";
  if (seconds < 0.9995) return seconds < 0.00001 ? "<0.01 ms" : `${formatValue(seconds * 1000)} ms`;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 59.5) return `${seconds.toFixed(0)} s`;
  const whole = Math.round(seconds);
  if (whole >= 600 && whole < 3600) return `${Math.round(whole / 60)} min`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${pad(whole % 60)} s`;
  const minutes = Math.floor(whole / 60);
  if (minutes < 1440) return `${Math.floor(minutes / 60)} h ${pad(minutes % 60)} min`;
  const hours = Math.floor(minutes / 60);
  return `${Math.floor(hours / 24)} d ${pad(hours % 24)} h`;
}

/** How long ago something was, to the second: what is younger than a second is "now". */
export function formatAge(seconds: number | null | undefined): string {
  if (!isNumber(seconds)) return NONE;
  if (seconds < 1) return "now";
  return `${formatDuration(Math.floor(seconds)).replace(".0", "")} ago`;
}

const clock = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const day = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });

export function formatClock(atS: number | null | undefined): string {
  return isNumber(atS) ? clock.format(atS * 1000) : NONE;
}

/** The time of day, with the date where it was not today. */
export function formatMoment(atS: number | null | undefined, nowS: number = Date.now() / 1000): string {
  if (!isNumber(atS)) return NONE;
  const text = clock.format(atS * 1000);
  return day.format(atS * 1000) === day.format(nowS * 1000) ? text : `${day.format(atS * 1000)}, ${text}`;
}

export function plural(count: number, one: string, many = `${one}s`): string {
  return `${formatCount(count)} ${count === 1 ? one : many}`;
}

/** a, b, c and 4 more: a sentence stays a sentence with 1,000 names. */
export function listNames(names: readonly string[], shown = 3): string {
  if (names.length <= shown) return names.join(", ");
  return `${names.slice(0, shown).join(", ")} and ${formatCount(names.length - shown)} more`;
}

export function isNumber(value: number | null | undefined): value is number {
  return typeof value === "number" && Number.isFinite(value);
}

function pad(value: number): string {
  return String(value).padStart(2, "0");
}
