// What an on-call engineer must know now, in the order of urgency, from what the API says and nothing else.
import type { Checkpoint, Dashboard, Worker } from "../api/types";
import { formatAge, formatCount, formatDuration, formatValue, listNames, plural } from "./format";
import { median } from "./heat";
import type { PageName } from "./route";
import { hasEnded, lookOf, type Tone } from "./states";

export interface Problem {
  tone: Tone;
  text: string;
  page: PageName;
}

// A barrier is always open for a moment; it is news when it stays open.
const BARRIER_NEWS_S = 3;
// So many times the usual distance between checkpoints without a new one is news.
const OVERDUE = 3;

export function findProblems(dash: Dashboard, nowS: number): Problem[] {
  const problems = [
    ...coordinatorProblems(dash),
    ...jobProblems(dash),
    ...workerProblems(dash, nowS),
    ...barrierProblems(dash, nowS),
    ...checkpointProblems(dash),
    ...stragglerProblems(dash),
  ];
  const rank: Record<Tone, number> = { bad: 0, warn: 1, wait: 2, busy: 3, ok: 4, off: 5 };
  return problems.sort((a, b) => rank[a.tone] - rank[b.tone]);
}

function coordinatorProblems({ coordinator }: Dashboard): Problem[] {
  if (coordinator.accepts_writes) return [];
  return [{ tone: "bad", text: `The coordinator takes no durable commands: ${coordinator.reason || "its journal refuses"}`, page: "overview" }];
}

function jobProblems({ job }: Dashboard): Problem[] {
  if (!job || !["waiting", "stalled", "recovering", "preempted", "failed"].includes(job.state)) return [];
  const fallback = job.waits_for > 0 ? `waits for ${plural(job.waits_for, "worker")}` : "the coordinator gives no reason";
  return [{ tone: job.state === "stalled" || job.state === "failed" ? "bad" : "warn", text: `${lookOf(job.state).label}: ${job.reason || fallback}`, page: "overview" }];
}

function workerProblems({ workers, job }: Dashboard, nowS: number): Problem[] {
  // How a job ended says what its lost workers mean for it.
  const failed = job !== null && hasEnded(job.state) ? [] : workers.filter((worker) => worker.state.toUpperCase() === "FAILED");
  const stalled = workers.filter((worker) => worker.is_present && worker.stall && !worker.stall.waits_on_others && !worker.stall.paused && worker.stall.stalled_s > worker.stall.limit_s / 2);
  const lost = workers.filter((worker) => worker.is_present && !worker.is_connected);
  const problems: Problem[] = [];
  if (failed.length > 0) {
    const seen = Math.max(...failed.map((worker) => worker.last_seen_s ?? 0));
    const when = seen > 0 ? `; last heartbeat ${formatAge(nowS - seen)}` : "";
    problems.push({ tone: "bad", text: `${listNames(names(failed))} failed and ${failed.length === 1 ? "has" : "have"} not come back${when}`, page: "workers" });
  }
  for (const worker of stalled.slice(0, 3)) {
    problems.push({ tone: "bad", text: `${worker.worker_id} makes no progress for ${formatDuration(worker.stall?.stalled_s)} of ${formatDuration(worker.stall?.limit_s)}`, page: "workers" });
  }
  if (lost.length > 0) problems.push({ tone: "warn", text: `${listNames(names(lost))} ${lost.length === 1 ? "is" : "are"} not connected`, page: "workers" });
  return problems;
}

function barrierProblems({ barriers }: Dashboard, nowS: number): Problem[] {
  return (barriers?.open ?? [])
    .filter((barrier) => nowS - barrier.began_s > BARRIER_NEWS_S)
    .map((barrier) => {
      const missing = barrier.missing.map((each) => each.worker_id);
      const more = Math.max(0, barrier.missing_total - 3);
      const whom = missing.length > 0 ? `${missing.slice(0, 3).join(", ")}${more > 0 ? ` and ${formatCount(more)} more` : ""}` : "workers that have not joined";
      return { tone: "warn" as const, text: `Barrier ${barrier.name} waits for ${whom} since ${formatDuration(nowS - barrier.began_s)}`, page: "barriers" as const };
    });
}

function checkpointProblems({ checkpoints, job }: Dashboard): Problem[] {
  const problems: Problem[] = [];
  const committed = checkpoints.filter((each) => each.state === "committed");
  const newest = committed[0]?.step ?? -1;
  const broken = checkpoints.find((each) => (each.state === "aborted" || each.state === "rejected") && each.step > newest);
  if (broken) problems.push({ tone: "bad", text: `Checkpoint of step ${formatCount(broken.step)} was ${broken.state}: ${broken.reason || "no reason given"}`, page: "checkpoints" });
  const diverged = checkpoints.find((each) => each.diverged === true);
  if (diverged) problems.push({ tone: "bad", text: `Ranks held different values of the same state at step ${formatCount(diverged.step)}${diverged.divergence ? `: ${diverged.divergence}` : ""}`, page: "checkpoints" });
  const usual = usualDistance(committed);
  const risk = job?.steps_at_risk ?? null;
  if (job?.state === "running" && usual !== null && risk !== null && risk > OVERDUE * usual) {
    problems.push({ tone: "warn", text: `${plural(risk, "step")} at risk: checkpoints usually come every ${plural(usual, "step")}`, page: "checkpoints" });
  }
  return problems;
}

/** The median number of steps between committed checkpoints; null before there are three of them. */
export function usualDistance(committed: readonly Checkpoint[]): number | null {
  const steps = committed.map((each) => each.step).sort((a, b) => a - b);
  const distances = steps.slice(1).map((step, index) => step - (steps[index] ?? step));
  return distances.length < 2 ? null : median(distances);
}

function stragglerProblems({ goodput }: Dashboard): Problem[] {
  return (goodput?.stragglers ?? []).slice(0, 3).map((each) => ({
    tone: "warn" as const,
    text: `Rank ${each.rank} (${each.worker_id}) takes ${formatValue(each.ratio)}× the others' median for ${plural(each.steps, "step")}: ${each.cause}`,
    page: "workers" as const,
  }));
}

function names(workers: readonly Worker[]): string[] {
  return workers.map((worker) => worker.worker_id);
}
