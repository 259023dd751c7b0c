import { describe, expect, test } from "vitest";
import { formatAge, formatBytes, formatCount, formatDuration, formatShare, formatValue, listNames, NONE } from "../src/lib/format";

describe("numbers", () => {
  test("what is not known is a dash, and never a zero", () => {
    for (const value of [null, undefined, NaN, Infinity]) {
      expect([formatCount(value), formatValue(value), formatShare(value), formatBytes(value), formatDuration(value), formatAge(value)]).toEqual(Array(6).fill(NONE));
    }
  });

  test("a share says 0 % or 100 % only of nothing and all", () => {
    expect([0, 0.0001, 0.5, 0.99996, 1].map(formatShare)).toEqual(["0.0 %", "<0.1 %", "50.0 %", ">99.9 %", "100.0 %"]);
  });

  test.each([
    [0, "0 s"], [0.000001, "<0.01 ms"], [0.0042, "4.20 ms"], [0.9999, "1.0 s"], [9.96, "10.0 s"], [59.4, "59 s"], [59.9, "1 min 00 s"],
    [185, "3 min 05 s"], [1500, "25 min"], [7800, "2 h 10 min"], [367200, "4 d 06 h"], [-2, "−2.0 s"],
  ])("%d seconds are %s", (seconds, text) => {
    expect(formatDuration(seconds)).toBe(text);
  });

  test("bytes are decimal, as disks and networks count them", () => {
    expect([999, 1000, 14_200_000_000, 5e18].map(formatBytes)).toEqual(["999 B", "1.00 kB", "14.2 GB", "5,000 PB"]);
  });

  test("ages are whole seconds", () => {
    expect([0.4, 1.9, 12.3].map(formatAge)).toEqual(["now", "1 s ago", "12 s ago"]);
  });

  test("a sentence stays one with a thousand names in it", () => {
    expect(listNames(Array.from({ length: 1000 }, (_, n) => `w${n}`))).toBe("w0, w1, w2 and 997 more");
  });
});
