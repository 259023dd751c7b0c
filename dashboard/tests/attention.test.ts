import { describe, expect, test } from "vitest";
import type { JobState } from "../src/api/types";
import { findProblems, usualDistance } from "../src/lib/attention";
import { makeCheckpoint, makeDashboard, makeGoodput, makeJob, makeWorker, NOW_S } from "./fixtures";

const texts = (change: Parameters<typeof makeDashboard>[0]) => findProblems(makeDashboard(change), NOW_S).map((problem) => problem.text);

describe("what needs attention", () => {
  test("a healthy run needs none", () => {
    expect(texts({})).toEqual([]);
  });

  test("a failed worker is named, with its last heartbeat", () => {
    const failed = makeWorker({ worker_id: "worker-2", state: "FAILED", is_present: false, is_connected: false, last_seen_s: NOW_S - 12 });
    expect(texts({ workers: [makeWorker(), failed] })).toEqual(["worker-2 failed and has not come back; last heartbeat 12 s ago"]);
  });

  test("a job that failed says why, one that was preempted is a warning, and one that is over needs nothing", () => {
    const workers = [makeWorker({ state: "FAILED", is_present: false })];
    const ended = (state: JobState, reason: string) => findProblems(makeDashboard({ workers, job: makeJob({ state, reason }) }), NOW_S).map(({ tone, text }) => [tone, text]);
    expect(ended("failed", "worker-0 crashed: ValueError")).toEqual([["bad", "Failed: worker-0 crashed: ValueError"]]);
    expect(ended("preempted", "worker-0 was preempted")).toEqual([["warn", "Preempted: worker-0 was preempted"]]);
    expect(ended("finished", "worker-0 finished")).toEqual([]);
    expect(ended("stopped", "worker-0 was stopped: Ctrl-C")).toEqual([]);
  });

  test("a thousand failed workers are one line", () => {
    const failed = Array.from({ length: 1000 }, (_, n) => makeWorker({ worker_id: `w${n}`, state: "FAILED", is_present: false }));
    expect(texts({ workers: failed })[0]).toContain("w0, w1, w2 and 997 more failed");
  });

  test("a barrier names whom it waits for, once it waits longer than a moment", () => {
    const barrier = { name: "epoch_1", round: 1, arrived: 3, expected: 4, began_s: NOW_S - 9, deadline_s: NOW_S + 50, missing: [{ worker_id: "worker-3", rank: 3, state: "TRAINING", step: 9, last_seen_s: NOW_S }], missing_total: 1 };
    const open = { open: [barrier], released: [], released_total: 0, wait_p50_s: null, wait_p99_s: null };
    expect(texts({ barriers: open })).toEqual(["Barrier epoch_1 waits for worker-3 since 9.0 s"]);
    expect(texts({ barriers: { ...open, open: [{ ...barrier, began_s: NOW_S - 1 }] } })).toEqual([]);
  });

  test("a checkpoint that failed matters until a newer one is committed", () => {
    const aborted = makeCheckpoint({ step: 95, state: "aborted", reason: "disk full", committed_s: null });
    expect(texts({ checkpoints: [aborted, makeCheckpoint()] })).toEqual(["Checkpoint of step 95 was aborted: disk full"]);
    expect(texts({ checkpoints: [makeCheckpoint({ step: 96 }), aborted] })).toEqual([]);
  });

  test("ranks that differ matter", () => {
    const diverged = makeCheckpoint({ diverged: true, divergence: "rank 2 held other values of head.weight" });
    expect(texts({ checkpoints: [diverged] })[0]).toContain("Ranks held different values");
    expect(texts({ checkpoints: [diverged] })[0]).toContain("rank 2 held other values of head.weight");
  });

  test("checkpoints that stop coming matter, measured by how often they came", () => {
    const checkpoints = [90, 80, 70, 60].map((step) => makeCheckpoint({ step }));
    expect(usualDistance(checkpoints)).toBe(10);
    expect(texts({ checkpoints, job: makeJob({ steps_at_risk: 31 }) })).toEqual(["31 steps at risk: checkpoints usually come every 10 steps"]);
    expect(texts({ checkpoints, job: makeJob({ steps_at_risk: 29 }) })).toEqual([]);
    expect(texts({ checkpoints: checkpoints.slice(2), job: makeJob({ steps_at_risk: 1000 }) })).toEqual([]);
  });

  test("a journal that refuses comes before everything else", () => {
    const dash = makeDashboard({ workers: [makeWorker({ state: "FAILED", is_present: false })], job: makeJob({ state: "recovering", reason: "worker-0 failed" }) });
    dash.coordinator = { ...dash.coordinator, accepts_writes: false, reason: "disk full" };
    expect(findProblems(dash, NOW_S).map((problem) => problem.tone)).toEqual(["bad", "bad", "warn"]);
    expect(findProblems(dash, NOW_S)[0]?.text).toContain("disk full");
  });

  test("a straggler is named with the cause", () => {
    const stragglers = [{ worker_id: "worker-4", rank: 4, steps: 64, step_s: 0.9, median_s: 0.5, ratio: 1.8, cause: "data" }];
    expect(texts({ goodput: makeGoodput({ stragglers }) })).toEqual(["Rank 4 (worker-4) takes 1.80× the others' median for 64 steps: data"]);
  });
});
