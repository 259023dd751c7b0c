import { describe, expect, test } from "vitest";
import type { Series } from "../src/api/types";
import { lonePoints, rangeOf } from "../src/components/Chart";
import { alignCurves, hasValues, sinceBegin } from "../src/lib/align";
import { eventTone, isRoutine } from "../src/lib/eventTone";
import { heatColour, heatRange, median } from "../src/lib/heat";
import { judgeFreshness } from "../src/lib/freshness";
import { matches, sortRows } from "../src/lib/rows";
import { linkTo, pageOf } from "../src/lib/route";
import { dropOpenInterval } from "../src/lib/series";
import { savedShare } from "../src/lib/saves";
import { timeShares } from "../src/lib/shares";
import { lookOf } from "../src/lib/states";
import { orderMetrics } from "../src/pages/Metrics";
import { makeCheckpoint, makeGoodput } from "./fixtures";

describe("rows", () => {
  test("what is not known comes last in both directions", () => {
    const rows = [3, null, 1, 2];
    expect(sortRows(rows, (row) => row, false)).toEqual([1, 2, 3, null]);
    expect(sortRows(rows, (row) => row, true)).toEqual([3, 2, 1, null]);
  });

  test("worker-2 comes before worker-10", () => {
    expect(sortRows(["worker-10", "worker-2"], (row) => row, false)).toEqual(["worker-2", "worker-10"]);
  });

  test("every word of a search must be somewhere", () => {
    expect(matches("fail 10.0", "worker-1", "10.0.0.1", "FAILED")).toBe(true);
    expect(matches("fail 10.1", "worker-1", "10.0.0.1", "FAILED")).toBe(false);
    expect(matches("  ", null)).toBe(true);
  });
});

describe("pictures", () => {
  test("one outlier does not grey out the rest", () => {
    expect(heatRange([...Array<number>(999).fill(1), 2, 100])).toEqual([1, 1.25, 100]);
    // Ten times as long while it warms up, and one rank of four that is slow ever since.
    expect(heatRange([900, 910, 900, 905, 180, 100, 101, 102, 181, 100, 101, 102])).toEqual([100, 423, 910]);
    expect(heatRange([100, 101, 103, 104])?.[1]).toBeCloseTo(127.5);
    expect(heatRange([0, 0])).toEqual([0, 1, 0]);
    expect(heatRange([null, null])).toBeNull();
    expect(heatRange([5, 5])?.[1]).toBeGreaterThan(5);
  });

  test("colours run from one end of the scale to the other, and stay in it", () => {
    expect(heatColour(-1, false)).toBe(heatColour(0, false));
    expect(heatColour(2, true)).toBe(heatColour(1, true));
  });

  test("lightness falls on a light page and grows on a dark one, all along", () => {
    const lightness = (colour: string) => {
      const [red = 0, green = 0, blue = 0] = (colour.match(/\d+/g) ?? []).map(Number);
      return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
    };
    const shares = Array.from({ length: 21 }, (_, n) => n / 20);
    const onLight = shares.map((share) => lightness(heatColour(share, false)));
    const onDark = shares.map((share) => lightness(heatColour(share, true)));
    expect(onLight).toEqual([...onLight].sort((a, b) => b - a));
    expect(onDark).toEqual([...onDark].sort((a, b) => a - b));
  });

  test("a value between two gaps is drawn as a point", () => {
    expect(lonePoints([null, 1, null, 2, 3, null, 4], 3)).toEqual([]);
    expect(lonePoints([1, null, null, null, 2, 3, null, null, null, 4], 3)).toEqual([0, 9]);
    expect(lonePoints([1, null, null, null, 2], Infinity)).toEqual([]);
    expect(lonePoints([null, 1, null], Infinity)).toEqual([1]);
  });

  test("an axis has room around a flat line, and begins at zero where it is asked to", () => {
    expect(rangeOf(5, 5, true)[0]).toBe(0);
    const [low, high] = rangeOf(5, 5, false);
    expect(low).toBeLessThan(5);
    expect(high).toBeGreaterThan(5);
    expect(rangeOf(null, null, false)).toEqual([0, 1]);
  });

  test("the median of nothing is not known", () => {
    expect([median([]), median([3, 1, 2]), median([1, 2, 3, 4])]).toEqual([null, 2, 2.5]);
  });
});

describe("curves of two jobs", () => {
  test("they meet on the times of both, with gaps where one has no value", () => {
    const { x, values } = alignCurves([
      { x: [0, 10], values: [1, 2] },
      { x: [5, 10], values: [3, null] },
    ]);
    expect(x).toEqual([0, 5, 10]);
    expect(values).toEqual([[1, null, 2], [null, 3, null]]);
    expect(hasValues([null, null])).toBe(false);
  });

  test("time is counted from the beginning of each", () => {
    expect(sinceBegin([100, 110], 90)).toEqual([10, 20]);
    expect(sinceBegin([100, 110], null)).toEqual([0, 10]);
  });
});

describe("series", () => {
  const parts = { compute: [1, 2], data: [1, 2], save: [1, 2], restore: [1, 2], wait: [1, 2], repeated: [1, 2], other: [1, 2] };
  const marks = [
    { at_s: 1, kind: "joined", label: "a", step: null },
    { at_s: 5, kind: "joined", label: "b", step: null },
  ];
  const series: Series = {
    job_id: "llm", resolution_s: 2, at_s: [11, 13], step: [1, 2], steps_per_s: [1, 2], samples_per_s: [1, 2], step_s: [1, 2], workers: [1, 2], parts,
    barrier_p50_s: [1, 2], barrier_p99_s: [1, 2], checkpoint_bytes_per_s: [1, 2], requests_per_s: [1, 2], metrics: { loss: [3, 4] }, marks,
  };

  test("an interval that is still open is left out of all lists, and no mark is", () => {
    const cut = dropOpenInterval(series, 16.5);
    expect([cut.at_s, cut.requests_per_s, cut.parts.wait, cut.metrics.loss]).toEqual([[11], [1], [1], [3]]);
    expect(cut.marks).toEqual(marks);
  });

  test("one that is over stays", () => {
    expect(dropOpenInterval(series, 17)).toBe(series);
  });
});

describe("states and addresses", () => {
  test("a state that this page does not know is shown by its own name", () => {
    expect(lookOf("WARMING_UP")).toEqual({ label: "Warming up", tone: "off" });
  });

  test("pages are found under any prefix, and an unknown one is the overview", () => {
    expect([pageOf("/"), pageOf("/workers"), pageOf("/strata/events"), pageOf("/nothing")]).toEqual(["overview", "workers", "events", "overview"]);
  });

  test("links keep the job and nothing else", () => {
    expect(linkTo("workers", new URLSearchParams("job=a&search=x"))).toBe("./workers?job=a");
    expect(linkTo("overview", new URLSearchParams())).toBe("./");
  });

  test("what comes with every checkpoint is routine, and what goes wrong with one is not", () => {
    const kinds = ["checkpoint committed", "checkpoint begun", "checkpoint_removed", "checkpoint rejected", "checkpoint aborted", "worker failed"];
    expect(kinds.filter((kind) => isRoutine({ kind, is_failure: false }))).toEqual(kinds.slice(0, 3));
    expect(eventTone({ kind: "worker failed", is_failure: true })).toBe("bad");
  });

  test("the loss comes first", () => {
    expect(orderMetrics(["b", "a10", "a2", "val_loss", "loss"])).toEqual(["loss", "val_loss", "a2", "a10", "b"]);
  });
});

describe("honesty", () => {
  test("shares of time add up to the wall time, also with a part that this page has no name for", () => {
    const parts = [["compute", 80], ["data", 15], ["brewing", 5]] as const;
    const goodput = makeGoodput({ parts: parts.map(([part, seconds]) => ({ part, seconds, share: seconds / 100 })) });
    expect(timeShares(goodput).reduce((sum, share) => sum + share.seconds, 0)).toBe(100);
    expect(timeShares(goodput).map((share) => share.label)).toContain("brewing");
  });

  test("a full checkpoint saved nothing, and one of unknown size is not reckoned", () => {
    expect(savedShare(makeCheckpoint({ size_bytes: 40, full_bytes: 100 }))).toBeCloseTo(0.6);
    expect(savedShare(makeCheckpoint())).toBeNull();
    expect(savedShare(makeCheckpoint({ full_bytes: null }))).toBeNull();
  });

  test("an old answer is called old, whatever the stream says", () => {
    expect(judgeFreshness({ answerAgeS: 12.4, mode: "live", error: null })).toMatchObject({ label: "Last answer 12 s ago", isStale: true });
    expect(judgeFreshness({ answerAgeS: 0.5, mode: "live", error: null })).toMatchObject({ label: "Live", isStale: false });
    expect(judgeFreshness({ answerAgeS: 0.5, mode: "polling", error: null })).toMatchObject({ label: "Polling", isStale: false });
    expect(judgeFreshness({ answerAgeS: null, mode: "connecting", error: "refused" })).toMatchObject({ label: "No answer", isStale: true });
    expect(judgeFreshness({ answerAgeS: 2, mode: "polling", error: "refused" }).isStale).toBe(true);
  });

  test("a job that is not there is no coordinator that is away", () => {
    expect(judgeFreshness({ answerAgeS: null, mode: "live", error: "there is no job 'x'", isRefused: true })).toMatchObject({ label: "Not found", isStale: false });
  });
});
