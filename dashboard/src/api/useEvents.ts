import { useQueryClient } from "@tanstack/react-query";
import { useEffect, useMemo, useSyncExternalStore } from "react";
import { ask } from "./fetch";
import { EventFeed, type FeedSource, type FeedState } from "./live";
import { follow } from "./stream";
import type { Events } from "./types";

const SOURCE: FeedSource = {
  ask: (query) => ask<Events>("events", query),
  open: (query, listener) => follow("events", query, listener),
};

// A burst of events, such as 1,000 workers that join, is one new look at the job.
const NEWS_MS = 300;

/** Call it once for all calls within a moment. */
function gather(call: () => void): () => void {
  let isWaiting = false;
  return () => {
    if (isWaiting) return;
    isWaiting = true;
    setTimeout(() => {
      isWaiting = false;
      call();
    }, NEWS_MS);
  };
}

/** The events of a job as they come. Each one makes the page look at the job again at once. */
export function useEvents(job: string | null): FeedState {
  const client = useQueryClient();
  const feed = useMemo(() => new EventFeed(SOURCE, job, gather(() => void client.invalidateQueries({ queryKey: ["dashboard"] }))), [client, job]);
  useEffect(() => {
    feed.start();
    return () => feed.stop();
  }, [feed]);
  return useSyncExternalStore(feed.subscribe, feed.read);
}
