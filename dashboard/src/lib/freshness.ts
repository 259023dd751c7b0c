// Whether what the page shows is still so. Old numbers are never shown as new ones.
import type { Tone } from "./states";

export interface Freshness {
  tone: Tone;
  label: string;
  isStale: boolean;
  detail: string;
}

/** From when on an answer counts as old: several polls have failed or did not come back by then. */
export const STALE_S = 4;

interface Facts {
  answerAgeS: number | null;
  mode: "connecting" | "live" | "polling";
  error: string | null;
  /** Whether the error is the coordinator's own answer: what was asked for is not there. */
  isRefused?: boolean;
}

export function judgeFreshness({ answerAgeS, mode, error, isRefused = false }: Facts): Freshness {
  if (answerAgeS === null) {
    if (error && isRefused) return { tone: "warn", label: "Not found", isStale: false, detail: error };
    if (error) return { tone: "bad", label: "No answer", isStale: true, detail: error };
    return { tone: "wait", label: "Connecting", isStale: false, detail: "the coordinator was asked and has not answered yet" };
  }
  if (error || answerAgeS >= STALE_S) {
    return { tone: "bad", label: `Last answer ${Math.max(0, Math.floor(answerAgeS))} s ago`, isStale: answerAgeS >= STALE_S || error !== null, detail: error ?? "the coordinator does not answer" };
  }
  if (mode === "live") return { tone: "ok", label: "Live", isStale: false, detail: "the coordinator says when there is something new" };
  return { tone: "wait", label: "Polling", isStale: false, detail: "pushed events do not come through; everything is asked for instead" };
}
