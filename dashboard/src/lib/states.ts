// One table for what a state is called, which colour it has, and the shape that says the same without colour.
import type { JobState } from "../api/types";

export type Tone = "ok" | "busy" | "wait" | "warn" | "bad" | "off";

export interface StateLook {
  label: string;
  tone: Tone;
}

const LOOKS: Readonly<Record<string, StateLook>> = {
  INITIALIZING: { label: "Initializing", tone: "wait" },
  IDLE: { label: "Idle", tone: "off" },
  LOADING_DATA: { label: "Loading data", tone: "wait" },
  TRAINING: { label: "Training", tone: "ok" },
  CHECKPOINTING: { label: "Checkpointing", tone: "busy" },
  RECOVERING: { label: "Recovering", tone: "warn" },
  FAILED: { label: "Failed", tone: "bad" },
  LEFT: { label: "Left", tone: "off" },
  FINISHED: { label: "Finished", tone: "off" },
  // Jobs.
  WAITING: { label: "Waiting", tone: "wait" },
  PREEMPTED: { label: "Preempted", tone: "warn" },
  STOPPED: { label: "Stopped", tone: "off" },
  RUNNING: { label: "Running", tone: "ok" },
  STALLED: { label: "Stalled", tone: "bad" },
  // Checkpoints.
  COLLECTING: { label: "Collecting parts", tone: "busy" },
  WRITING: { label: "Writing manifest", tone: "busy" },
  COMMITTED: { label: "Committed", tone: "ok" },
  ABORTED: { label: "Aborted", tone: "warn" },
  REJECTED: { label: "Rejected", tone: "bad" },
};

/** A state that this page does not know is shown by its own name, in grey. */
export function lookOf(state: string): StateLook {
  const known = LOOKS[state.toUpperCase()];
  if (known) return known;
  const words = state.toLowerCase().replaceAll("_", " ");
  return { label: words.charAt(0).toUpperCase() + words.slice(1), tone: "off" };
}

/** Whether a job in this state has no workers, and gets none unless someone starts it again. */
export function hasEnded(jobState: JobState): boolean {
  return jobState === "finished" || jobState === "preempted" || jobState === "stopped" || jobState === "failed";
}

// How urgent a state is, for sorting: what needs a person comes first.
const URGENCY: Readonly<Record<Tone, number>> = { bad: 0, warn: 1, wait: 2, busy: 3, ok: 4, off: 5 };

export function urgencyOf(state: string): number {
  return URGENCY[lookOf(state).tone];
}
