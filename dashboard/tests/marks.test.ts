import { describe, expect, it } from "vitest";
import type { Mark } from "../src/api/types";
import { restartMarks } from "../src/lib/marks";

const mark = (kind: string, label: string): Mark => ({ at_s: 1, kind, label, step: null });

describe("marks on the time axis", () => {
  it("shows a rewind and diverged ranks as what they are, and no commit", () => {
    const shown = restartMarks([
      mark("rewind", "to step 100: loss spike"),
      mark("diverged", "step 5: rank 2 held other values of head.weight"),
      mark("committed", "checkpoint of step 5"),
      mark("failure", "4: b failed"),
    ]);
    expect(shown.map((each) => each.label)).toEqual([
      "rewound: to step 100: loss spike",
      "ranks differ: step 5: rank 2 held other values of head.weight",
      "generation 4: b failed",
    ]);
    expect(shown.map((each) => each.tone)).toEqual(["wait", "bad", "bad"]);
  });
});
