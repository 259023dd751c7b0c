import type { Checkpoint, SavePhases } from "../api/types";
import { isNumber } from "./format";

/** The share of a full checkpoint that a delta did not write again; null where it is not known or there is none. */
export function savedShare(checkpoint: Checkpoint): number | null {
  const { size_bytes: size, full_bytes: full } = checkpoint;
  if (!isNumber(size) || !isNumber(full) || full <= 0 || size >= full) return null;
  return 1 - size / full;
}

export const PHASES: readonly { key: keyof SavePhases; label: string; colour: string }[] = [
  { key: "blocked", label: "Training held up", colour: "--c2" },
  { key: "stage", label: "Copied to staging", colour: "--c5" },
  { key: "write", label: "Part written", colour: "--c1" },
  { key: "commit", label: "Committed", colour: "--c3" },
];

/** Whether there is any checkpoint with phases, so that the page says once that none were reported. */
export function longestSave(checkpoints: readonly Checkpoint[]): number {
  return checkpoints.reduce((high, each) => Math.max(high, each.phases ? totalPhases(each.phases) : 0), 0);
}

export function totalPhases(phases: SavePhases): number {
  return PHASES.reduce((sum, { key }) => sum + phases[key], 0);
}
