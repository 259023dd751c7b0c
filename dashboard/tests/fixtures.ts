// Answers as the API gives them, typed by its own document; what a test does not name is plain and unremarkable.
import type { Checkpoint, Dashboard, Goodput, JobSummary, Worker } from "../src/api/types";

export const NOW_S = 1_700_000_000;

export function makeWorker(change: Partial<Worker> = {}): Worker {
  return {
    worker_id: "worker-0", incarnation: "a", rank: 0, state: "TRAINING", is_present: true, step: 100, epoch: 0, lag: 0, host: "10.0.0.1",
    gpu_count: 8, memory_bytes: 640e9, last_seen_s: NOW_S - 1, lease_until_s: NOW_S + 9, is_connected: true, step_s: 0.5, samples_per_s: 64,
    metrics: {}, parts: null, own_step_s: 0.5, straggles: null, stall: null, ...change,
  };
}

export function makeJob(change: Partial<JobSummary> = {}): JobSummary {
  return {
    job_id: "llm", state: "running", reason: "", generation: 1, workers: 1, departed: 0, waits_for: 0, min_workers: 1, max_workers: null, step: 100, epoch: 0,
    total_steps: null, step_s: 0.5, steps_per_s: 2, samples_per_s: 64, tokens_per_s: null, last_step_s: NOW_S, committed_step: 90, steps_at_risk: 10,
    goodput: 0.9, failures: 0, last_failure_s: null, ...change,
  };
}

export function makeCheckpoint(change: Partial<Checkpoint> = {}): Checkpoint {
  return {
    step: 90, epoch: 0, state: "committed", reason: "", manifest: "m", began_s: NOW_S - 20, committed_s: NOW_S - 18, parts: 1, expected_parts: 1, missing: [],
    size_bytes: 100, full_bytes: 100, bytes_per_s: 50, phases: null, diverged: null, divergence: "", ...change,
  };
}

export function makeGoodput(change: Partial<Goodput> = {}): Goodput {
  return {
    job_id: "llm", began_s: NOW_S - 100, until_s: NOW_S, wall_s: 100, goodput: 0.9, recent_goodput: 0.9, parts: [], steps: 100, repeated_steps: 0,
    steps_at_risk: 10, failures: 0, mtbf_s: null, restarts: [], stragglers: [], slowest: [], ...change,
  };
}

export function makeDashboard(change: Partial<Dashboard> = {}): Dashboard {
  return {
    coordinator: {
      version: "0.1.0", started_s: NOW_S - 100, journal: "sqlite", accepts_writes: true, reason: "", channels: 1, jobs: 1, workers: 1, requests_total: 1,
      requests_per_s: 1, grpc_port: 50051, channel_port: 50052,
    },
    jobs: [makeJob()], job: makeJob(), workers: [makeWorker()], datasets: [], checkpoints: [],
    barriers: { open: [], released: [], released_total: 0, wait_p50_s: null, wait_p99_s: null },
    metrics: null, goodput: makeGoodput(), ...change,
  };
}
