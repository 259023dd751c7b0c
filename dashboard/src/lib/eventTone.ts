import type { EventEntry } from "../api/types";
import type { Tone } from "./states";

/** How an event looks: failures as failures, saves as saves, and the rest quietly. */
export function eventTone(event: Pick<EventEntry, "kind" | "is_failure">): Tone {
  const kind = event.kind.toLowerCase();
  if (event.is_failure || kind.includes("fail") || kind.includes("rejected") || kind.includes("lost")) return "bad";
  if (kind.includes("abort") || kind.includes("rollback") || kind.includes("rolled") || kind.includes("timeout")) return "warn";
  if (kind.includes("commit") || kind.includes("checkpoint")) return "busy";
  if (kind.includes("join") || kind.includes("regist")) return "ok";
  return "off";
}

/** Whether an event is one of those that come with every checkpoint, and would push everything else out of a short list. */
export function isRoutine(event: Pick<EventEntry, "kind" | "is_failure">): boolean {
  return !event.is_failure && /^checkpoint[ _](begun|committed|removed)$/.test(event.kind);
}
