// Two jobs on one axis: the time since each began.

export interface Curve {
  x: readonly number[];
  values: readonly (number | null)[];
}

/** Put curves with different x on the sorted union of them; null where a curve has no value at an x. */
export function alignCurves(curves: readonly Curve[]): { x: number[]; values: (number | null)[][] } {
  const x = [...new Set(curves.flatMap((curve) => [...curve.x]))].sort((a, b) => a - b);
  const places = new Map(x.map((at, index) => [at, index]));
  const values = curves.map((curve) => {
    const row: (number | null)[] = new Array<number | null>(x.length).fill(null);
    curve.x.forEach((at, index) => {
      const place = places.get(at);
      if (place !== undefined) row[place] = curve.values[index] ?? null;
    });
    return row;
  });
  return { x, values };
}

export function sinceBegin(times: readonly number[], beganS: number | null): number[] {
  const from = beganS ?? times[0] ?? 0;
  return times.map((at) => at - from);
}

/** Whether a list has anything in it that was measured. */
export function hasValues(values: readonly (number | null)[]): boolean {
  return values.some((value) => value !== null);
}
