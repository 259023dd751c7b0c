import type { Share } from "../components/ShareBar";
import type { Goodput } from "../api/types";

// What the parts of the wall time are called, in the order in which they are drawn: kept work first, then what it cost.
const PARTS: readonly { part: string; label: string; hint: string; colour: string }[] = [
  { part: "compute", label: "Training", hint: "steps that were kept", colour: "--c1" },
  { part: "data", label: "Data", hint: "waiting for the next batch", colour: "--c5" },
  { part: "save", label: "Saving", hint: "held up by a checkpoint", colour: "--c3" },
  { part: "wait", label: "Other workers", hint: "waiting for them", colour: "--c6" },
  { part: "restore", label: "Restoring", hint: "state from a checkpoint", colour: "--c4" },
  { part: "repeated", label: "Repeated steps", hint: "lost or done again", colour: "--c2" },
  { part: "down", label: "Down", hint: "no worker at all", colour: "--bad" },
  { part: "other", label: "Other", hint: "the rest of the run", colour: "--c7" },
];

/** Every part of the wall time, also one that this page has no name for: the shares always add up to all of it. */
export function timeShares(goodput: Goodput): Share[] {
  const seconds = new Map(goodput.parts.map((each) => [each.part, each.seconds]));
  const known = PARTS.filter(({ part }) => seconds.has(part)).map(({ part, label, hint, colour }) => ({ key: part, label, hint, colour, seconds: seconds.get(part) ?? 0 }));
  const names = new Set(PARTS.map(({ part }) => part));
  const unknown = goodput.parts.filter(({ part }) => !names.has(part)).map((each) => ({ key: each.part, label: each.part, seconds: each.seconds, colour: "--c7" }));
  return [...known, ...unknown];
}

export function partLabel(part: string): string {
  return PARTS.find((each) => each.part === part)?.label ?? part;
}
