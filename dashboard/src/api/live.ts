import type { StreamListener } from "./stream";
import type { EventEntry, Events } from "./types";

export type FeedMode = "connecting" | "live" | "polling";

export interface FeedState {
  mode: FeedMode;
  items: readonly EventEntry[];
  /** Whether events were lost between two answers: older ones than those in the list may be missing. */
  lost: boolean;
  error: string | null;
}

export interface FeedSource {
  ask: (query: { job: string | null; after?: string; newest?: string; limit: number }) => Promise<Events>;
  /** Open the stream; return what closes it. */
  open: (query: { job: string | null; after: string }, listener: StreamListener) => () => void;
}

const KEPT = 10_000;
const FIRST = 1_000;
const PERIOD_MS = 2_000;

/** The events of a job as they come: by Server-Sent Events, and by polling for as long as those do not come. */
export class EventFeed {
  private state: FeedState = { mode: "connecting", items: [], lost: false, error: null };
  private readonly listeners = new Set<() => void>();
  private after: string | null = null;
  private close: (() => void) | null = null;
  private timer: ReturnType<typeof setTimeout> | null = null;
  private isStopped = false;

  private readonly source: FeedSource;
  private readonly job: string | null;
  private readonly onNews: () => void;

  constructor(source: FeedSource, job: string | null, onNews: () => void) {
    this.source = source;
    this.job = job;
    this.onNews = onNews;
  }

  readonly read = (): FeedState => this.state;

  readonly subscribe = (listener: () => void): (() => void) => {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  };

  start(): void {
    this.isStopped = false;
    void this.poll();
  }

  stop(): void {
    this.isStopped = true;
    this.close?.();
    this.close = null;
    if (this.timer !== null) clearTimeout(this.timer);
  }

  /** Ask once; then open the stream if it is not open, and come back until it is. */
  private async poll(): Promise<void> {
    try {
      const answer = await this.source.ask({ job: this.job, limit: FIRST, ...(this.after === null ? { newest: "true" } : { after: this.after }) });
      if (this.isStopped) return;
      const isFirst = this.after === null;
      this.after = answer.next;
      this.add(answer.items, { error: null, lost: this.state.lost || (answer.lost && !isFirst) }, isFirst);
      if (this.close === null) this.open(answer.next);
    } catch (error) {
      this.set({ mode: "polling", error: error instanceof Error ? error.message : "no answer" });
    }
    this.schedule();
  }

  private open(after: string): void {
    this.close = this.source.open(
      { job: this.job, after },
      {
        onOpen: () => this.set({ mode: "live", error: null }),
        onMessage: (kind, data) => this.hear(kind, data),
        onEnd: () => {
          // Asking first says where to go on, also after a restart.
          this.close = null;
          this.set({ mode: "polling" });
          this.schedule();
        },
      },
    );
  }

  private hear(kind: string, data: string): void {
    if (kind === "event") {
      const event = JSON.parse(data) as EventEntry;
      this.after = event.position;
      this.add([event], { mode: "live" });
    }
    // Numbers are new: whoever shows them asks for them.
    if (kind === "changed") this.onNews();
    if (kind === "lost") this.set({ lost: true });
  }

  private schedule(): void {
    if (this.timer !== null) clearTimeout(this.timer);
    this.timer = null;
    if (this.isStopped || this.close !== null) return;
    this.timer = setTimeout(() => void this.poll(), PERIOD_MS);
  }

  private add(items: readonly EventEntry[], change: Partial<FeedState>, isFirst = false): void {
    const known = new Set(this.state.items.slice(-FIRST).map((event) => event.position));
    const fresh = items.filter((event) => !known.has(event.position));
    if (fresh.length > 0) change.items = [...this.state.items, ...fresh].slice(-KEPT);
    this.set(change);
    if (fresh.length > 0 && !isFirst) this.onNews();
  }

  private set(change: Partial<FeedState>): void {
    if (this.isStopped) return;
    this.state = { ...this.state, ...change };
    this.listeners.forEach((listener) => listener());
  }
}
