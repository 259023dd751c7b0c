// Made from openapi.json by "npm run types"; change the coordinator's models instead.

/** What the model has seen of an epoch, sample by sample. */
export interface Audit {
  epoch: number;
  exactly_once: boolean;
  missing: SampleSet;
  repeated: SampleSet;
  skipped: SampleSet;
  total_samples: number;
}

/** A barrier that someone waits at now. */
export interface Barrier {
  arrived: number;
  /** When the first worker arrived. */
  began_s: number;
  deadline_s: number;
  expected: number;
  /** At most 100. */
  missing: (MissingAtBarrier)[];
  missing_total: number;
  name: string;
  round: number;
}

/** Barriers that are open, the last that were released, and how long they took. */
export interface Barriers {
  open: (Barrier)[];
  /** The newest last; at most 50. */
  released: (ReleasedBarrier)[];
  /** Since the coordinator started. */
  released_total: number;
  /** Of the last 1,024 that were released. */
  wait_p50_s: number | null;
  wait_p99_s: number | null;
}

/** How often something happened. */
export interface CauseCount {
  cause: string;
  count: number;
}

/** A checkpoint, from its first part on. */
export interface Checkpoint {
  /** When the first part was reported. */
  began_s: number | null;
  bytes_per_s: number | null;
  committed_s: number | null;
  /** Whether ranks held different values of what should be the same; None if that was not compared. */
  diverged: boolean | null;
  /** Which ranks, and of which tensor; empty if none. */
  divergence: string;
  epoch: number;
  expected_parts: number | null;
  /** What the state takes in full; more than size_bytes for a delta. */
  full_bytes: number | null;
  manifest: string;
  /** Workers whose parts are missing; at most 100. */
  missing: (string)[];
  parts: number | null;
  phases: SavePhases | null;
  /** Why it was aborted or rejected. */
  reason: string;
  /** What the parts of this step have written. */
  size_bytes: number | null;
  state: CheckpointState;
  step: number;
}

/** Where a checkpoint is in its life. */
export type CheckpointState = "collecting" | "writing" | "committed" | "aborted" | "rejected";

/** The coordinator itself. */
export interface CoordinatorStatus {
  accepts_writes: boolean;
  channel_port: number;
  /** How many connections of workers are open, of the tenants that the caller is shown. */
  channels: number;
  grpc_port: number;
  jobs: number;
  /** Where its state is kept: sqlite, etcd or memory. */
  journal: string;
  /** Why the journal refuses, if it does. */
  reason: string;
  /** Of the last ten seconds; null likewise. */
  requests_per_s: number | null;
  /** Of all tenants: null for a caller who is shown one of several. */
  requests_total: number | null;
  started_s: number;
  version: string;
  workers: number;
}

/** Everything about one job, and the coordinator; without `job` the busiest one. */
export interface Dashboard {
  barriers: Barriers | null;
  /** The newest 50, newest first. */
  checkpoints: (Checkpoint)[];
  coordinator: CoordinatorStatus;
  datasets: (Dataset)[];
  goodput: Goodput | null;
  job: JobSummary | null;
  jobs: (JobSummary)[];
  metrics: JobMetrics | null;
  workers: (Worker)[];
}

/** A dataset of a job. */
export interface Dataset {
  dataset_id: string;
  /** The newest last; at most 20. */
  epochs: (EpochProgress)[];
  /** Shards that changed hands at the last change of workers; None if not known. */
  moved_shards: number | null;
  order: string;
  seed: number;
  shard_size: number;
  /** Whole shards by worker, by rank; empty if nothing was dealt. */
  shards: (ShardCount)[];
  shuffle: boolean;
  skipped_samples: number;
  total_samples: number;
  total_shards: number;
}

/** A dataset, and the audit of one of its epochs. */
export interface DatasetDetail {
  audit: Audit;
  dataset: Dataset;
}

/** What the model has seen of an epoch. */
export interface EpochProgress {
  epoch: number;
  seen_samples: number;
  total_samples: number;
}

/** Something that happened. */
export interface EventEntry {
  /** From where that command came. */
  address: string;
  at_s: number;
  /** The name of the token whose command caused it; empty for what time did. */
  by: string;
  cause: string | null;
  is_failure: boolean;
  job_id: string;
  kind: string;
  /** Ask for what comes after it with ?after=. */
  position: string;
  reason: string;
  worker_id: string | null;
}

/** Events in the order in which they happened. */
export interface Events {
  /** Whether more matches now. */
  has_more: boolean;
  items: (EventEntry)[];
  /** Whether events after the position asked for are no longer known. */
  lost: boolean;
  /** Pass it as ?after= to get what comes next. */
  next: string;
}

/** Where the wall time of a job went. The seconds of `parts` add up to `wall_s`. */
export interface Goodput {
  began_s: number | null;
  failures: number;
  /** Share of the wall time that became kept steps. */
  goodput: number | null;
  job_id: string;
  /** Mean time between failures: wall time by failures; None without any. */
  mtbf_s: number | null;
  parts: (LostTime)[];
  /** The same of the last ten minutes. */
  recent_goodput: number | null;
  /** Steps that were done again. */
  repeated_steps: number;
  /** Why generations ended, by cause. */
  restarts: (CauseCount)[];
  /** The newest last; at most 50. */
  slowest: (SlowestRank)[];
  /** Steps kept so far. */
  steps: number;
  steps_at_risk: number | null;
  stragglers: (Straggling)[];
  /** Until when reports are in; a few seconds ago for a job that runs. */
  until_s: number | null;
  wall_s: number;
}

/** Whether the coordinator's own loop answers. */
export interface Health {
  started_s: number;
  /** ok, or why not */
  status: string;
  version: string;
}

/** The numbers on top of the page. */
export interface JobMetrics {
  barrier_p50_s: number | null;
  barrier_p99_s: number | null;
  /** Of the last committed checkpoint. */
  checkpoint_bytes_per_s: number | null;
  failures: number;
  goodput: number | null;
  mtbf_s: number | null;
  recent_goodput: number | null;
  requests_per_s: number | null;
  samples_per_s: number | null;
  steps_at_risk: number | null;
  steps_per_s: number | null;
  tokens_per_s: number | null;
}

/** The one state that a job is in. */
export type JobState = "waiting" | "recovering" | "running" | "stalled" | "finished" | "preempted" | "stopped" | "failed";

/** One job at a glance. */
export interface JobSummary {
  committed_step: number | null;
  /** Workers that left or failed and are remembered. */
  departed: number;
  epoch: number;
  failures: number;
  generation: number;
  /** Share of wall time that became kept steps, from 0 to 1. */
  goodput: number | null;
  job_id: string;
  last_failure_s: number | null;
  /** When a new step was last heard of. */
  last_step_s: number | null;
  max_workers: number | null;
  min_workers: number;
  /** Why it is in that state, in words; may be empty. */
  reason: string;
  samples_per_s: number | null;
  state: JobState;
  step: number;
  /** Seconds a step takes, as the workers average it. */
  step_s: number | null;
  /** Steps done since the checkpoint that a restart would restore. */
  steps_at_risk: number | null;
  steps_per_s: number | null;
  tokens_per_s: number | null;
  total_steps: number | null;
  /** How many workers are missing before it can run. */
  waits_for: number;
  /** Workers present. */
  workers: number;
}

/** All jobs that the coordinator remembers. */
export interface Jobs {
  jobs: (JobSummary)[];
}

/** One part of the wall time. */
export interface LostTime {
  /** compute, data, save, restore, wait, repeated, other, or down: no worker at all. */
  part: string;
  seconds: number;
  share: number;
}

/** Something to mark on the time axis. */
export interface Mark {
  at_s: number;
  /** failure, joined, left, rollback, rewind, committed, aborted, rejected, diverged or coordinator. */
  kind: string;
  label: string;
  step: number | null;
}

/** A worker that others wait for. */
export interface MissingAtBarrier {
  last_seen_s: number | null;
  rank: number;
  state: string;
  step: number;
  worker_id: string;
}

export interface Page_Checkpoint_ {
  items: (Checkpoint)[];
  limit: number;
  offset: number;
  total: number;
}

export interface Page_Dataset_ {
  items: (Dataset)[];
  limit: number;
  offset: number;
  total: number;
}

export interface Page_Worker_ {
  items: (Worker)[];
  limit: number;
  offset: number;
  total: number;
}

/** Shares of wall time by part, one number for each time; null where nothing was reported. */
export interface PartSeries {
  compute: (number | null)[];
  data: (number | null)[];
  other: (number | null)[];
  repeated: (number | null)[];
  restore: (number | null)[];
  save: (number | null)[];
  wait: (number | null)[];
}

/** Why a request was not answered as asked: what is wrong, and what to do. */
export interface Problem {
  detail: string;
}

/** Whether a leader takes commands that must be durable, or a standby could lead. */
export interface Readiness {
  /** Where the leader's gRPC is; empty if no leader is known. */
  leader: string;
  ready: boolean;
  /** Empty if it is ready. */
  reason: string;
  role: ReplicaRole;
  /** Grows with every election; 0 without replicas. */
  term: number;
}

/** A barrier that was released. */
export interface ReleasedBarrier {
  last_worker: string;
  name: string;
  released_s: number | null;
  /** How long the first waited for the last. */
  waited_s: number;
  workers: number;
}

/** What a coordinator is among its replicas; one without any leads. */
export type ReplicaRole = "leader" | "standby";

/** Samples that an audit found: how many, and the first ranges of them. */
export interface SampleSet {
  ranges: ([number, number])[];
  samples: number;
}

/** Seconds of the slowest worker in each phase of a save. */
export interface SavePhases {
  /** Training was held up. */
  blocked: number;
  /** Until all workers were done and the manifest was written. */
  commit: number;
  /** Until the state was copied. */
  stage: number;
  /** Until the part was durable. */
  write: number;
}

/** Time series of a job; all lists are as long as `at_s`, and null says that nothing is known. */
export interface Series {
  /** The middle of each interval, ascending. */
  at_s: (number)[];
  barrier_p50_s: (number | null)[];
  barrier_p99_s: (number | null)[];
  checkpoint_bytes_per_s: (number | null)[];
  job_id: string;
  marks: (Mark)[];
  /** Loss and other numbers of the training loop, by name. */
  metrics: Record<string, (number | null)[]>;
  parts: PartSeries;
  /** Of the whole coordinator; null for one of several tenants. */
  requests_per_s: (number | null)[];
  resolution_s: number;
  samples_per_s: (number | null)[];
  step: (number | null)[];
  step_s: (number | null)[];
  steps_per_s: (number | null)[];
  workers: (number | null)[];
}

/** How many shards of a dataset a worker has. */
export interface ShardCount {
  shards: number;
  worker_id: string;
}

/** Who was the slowest for a while: between two reports, which is a few seconds, or one long step. */
export interface SlowestRank {
  at_s: number;
  median_s: number;
  rank: number;
  step: number;
  step_s: number;
  worker_id: string;
}

/** A worker that makes no progress: its step takes more than three times as long as usual. Before its first step nobody knows what is usual, and half of its watchdog's limit counts. */
export interface Stall {
  in_collective: boolean;
  /** After so long its watchdog ends it. */
  limit_s: number;
  paused: boolean;
  stalled_s: number;
  waits_on_others: boolean;
}

/** Own step times by rank, for a heat map: without waiting for others, so that the slow one stands out. */
export interface StepTimes {
  at_s: (number)[];
  job_id: string;
  median_s: (number | null)[];
  ranks: (number)[];
  resolution_s: number;
  /** For each of `ranks`, seconds a step at each of `at_s`. */
  rows: ((number | null)[])[];
  /** The slowest rank of all at each time. */
  slowest: (number | null)[];
  total_ranks: number;
  worker_ids: (string)[];
}

/** A rank that is slower than the others. */
export interface Straggling {
  /** Where the difference is: data, compute or save. */
  cause: string;
  /** The median of the others. */
  median_s: number;
  rank: number;
  ratio: number;
  /** Its own seconds a step, without waiting for others. */
  step_s: number;
  /** For how many steps on end. */
  steps: number;
  worker_id: string;
}

/** Seconds by what they were spent on. */
export interface TimeParts {
  /** Steps that were kept so far. */
  compute: number;
  /** Waiting for the next batch. */
  data: number;
  /** Everything else in the run. */
  other: number;
  /** Steps that were lost, or done again after a restore. */
  repeated: number;
  /** Restoring state. */
  restore: number;
  /** Held up by a save. */
  save: number;
  /** Waiting for other workers. */
  wait: number;
}

/** One worker as the coordinator knows it. */
export interface Worker {
  epoch: number;
  gpu_count: number;
  host: string;
  incarnation: string;
  is_connected: boolean;
  is_present: boolean;
  /** Steps behind the furthest worker. */
  lag: number | null;
  /** Its last heartbeat; None if none came since the coordinator started. */
  last_seen_s: number | null;
  lease_until_s: number | null;
  memory_bytes: number;
  /** What it reports of its last step, such as the loss; null for what is not a finite number. */
  metrics: Record<string, number | null>;
  /** Seconds a step without waiting for others, lately. */
  own_step_s: number | null;
  /** Its own time since it joined. */
  parts: TimeParts | null;
  /** None if it left or failed. */
  rank: number | null;
  samples_per_s: number | null;
  stall: Stall | null;
  state: string;
  step: number;
  step_s: number | null;
  straggles: Straggling | null;
  worker_id: string;
}

/** Where a worker is in its life; :data:`strata.cluster.membership.TRANSITIONS` says what may follow what. */
export type WorkerState = "initializing" | "idle" | "loading_data" | "training" | "checkpointing" | "recovering" | "failed" | "left";
