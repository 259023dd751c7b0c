import type { Mark as ApiMark } from "../api/types";
import type { Mark } from "../components/Chart";
import type { Tone } from "./states";

const TONES: Readonly<Record<string, Tone>> = { failure: "bad", rollback: "warn", rewind: "wait", joined: "ok", left: "off", rejected: "bad", diverged: "bad", coordinator: "wait" };

// What a label does not say by itself.
const WORDS: Readonly<Record<string, string>> = { rewind: "rewound: ", diverged: "ranks differ: " };

// What changes how a curve is to be read; a committed checkpoint does not.
const RESTARTS = new Set(Object.keys(TONES));

/** Restarts, rewinds, failures and diverged ranks for the time axis. */
export function restartMarks(marks: readonly ApiMark[]): Mark[] {
  return marks.filter((mark) => RESTARTS.has(mark.kind)).map(toMark);
}

function toMark(mark: ApiMark): Mark {
  // A change of generation is labelled with its number alone.
  return { at: mark.at_s, label: (WORDS[mark.kind] ?? "") + mark.label.replace(/^(?=\d+: )/, "generation "), tone: TONES[mark.kind] ?? "off" };
}
