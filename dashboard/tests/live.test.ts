import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import { EventFeed, type FeedSource } from "../src/api/live";
import type { StreamListener } from "../src/api/stream";
import type { EventEntry, Events } from "../src/api/types";

const event = (position: string): EventEntry => ({ position, at_s: 1, job_id: "llm", worker_id: null, kind: "k", reason: "", cause: null, is_failure: false, address: "", by: "" });
const answer = (items: string[], next: string): Events => ({ items: items.map(event), next, has_more: false, lost: false });

class FakeStream {
  isClosed = false;
  readonly after: string;
  readonly listener: StreamListener;
  constructor(after: string, listener: StreamListener) {
    this.after = after;
    this.listener = listener;
  }
  send(kind: string, data: unknown = {}): void {
    this.listener.onMessage(kind, JSON.stringify(data));
  }
}

function setUp(answers: (Events | Error)[]) {
  const streams: FakeStream[] = [];
  const asked: (string | undefined)[] = [];
  const source: FeedSource = {
    ask: ({ after }) => {
      asked.push(after);
      const next = answers.shift() ?? answer([], "end");
      return next instanceof Error ? Promise.reject(next) : Promise.resolve(next);
    },
    open: ({ after }, listener) => {
      const stream = new FakeStream(after, listener);
      streams.push(stream);
      return () => (stream.isClosed = true);
    },
  };
  const onNews = vi.fn();
  const feed = new EventFeed(source, "llm", onNews);
  return { feed, streams, asked, onNews, positions: () => feed.read().items.map((each) => each.position) };
}

describe("the feed of events", () => {
  beforeEach(() => void vi.useFakeTimers());
  afterEach(() => void vi.useRealTimers());

  test("it asks for what was, and then listens from there on", async () => {
    const { feed, streams, onNews, positions } = setUp([answer(["1", "2"], "2")]);
    feed.start();
    await vi.advanceTimersByTimeAsync(0);
    expect(streams[0]?.after).toBe("2");
    expect(onNews).not.toHaveBeenCalled();
    streams[0]?.listener.onOpen();
    streams[0]?.send("event", event("3"));
    expect(positions()).toEqual(["1", "2", "3"]);
    expect(feed.read().mode).toBe("live");
    expect(onNews).toHaveBeenCalledOnce();
    feed.stop();
    expect(streams[0]?.isClosed).toBe(true);
  });

  test("a stream that breaks is polled for, and opened again where it was", async () => {
    const { feed, streams, asked, positions } = setUp([answer(["1"], "1"), new Error("refused"), answer(["2"], "2")]);
    feed.start();
    await vi.advanceTimersByTimeAsync(0);
    streams[0]?.listener.onEnd();
    expect(feed.read().mode).toBe("polling");
    await vi.advanceTimersByTimeAsync(2_000);
    expect(feed.read().error).toBe("refused");
    await vi.advanceTimersByTimeAsync(2_000);
    expect(asked).toEqual([undefined, "1", "1"]);
    expect(streams[1]?.after).toBe("2");
    expect(positions()).toEqual(["1", "2"]);
    feed.stop();
  });

  test("new numbers are news without an event, and lost events are said", async () => {
    const { feed, streams, onNews } = setUp([answer([], "0")]);
    feed.start();
    await vi.advanceTimersByTimeAsync(0);
    streams[0]?.send("changed", { version: 2 });
    expect(onNews).toHaveBeenCalledOnce();
    expect(feed.read().lost).toBe(false);
    streams[0]?.send("lost");
    expect(feed.read().lost).toBe(true);
    feed.stop();
  });

  test("an event that comes twice is shown once", async () => {
    const { feed, streams, positions } = setUp([answer(["1"], "1")]);
    feed.start();
    await vi.advanceTimersByTimeAsync(0);
    streams[0]?.send("event", event("1"));
    expect(positions()).toEqual(["1"]);
    feed.stop();
  });

  test("a feed that was stopped says and asks nothing more", async () => {
    const { feed, asked } = setUp([new Error("refused")]);
    feed.start();
    feed.stop();
    await vi.advanceTimersByTimeAsync(10_000);
    expect(asked).toHaveLength(1);
    expect(feed.read().error).toBeNull();
  });
});
