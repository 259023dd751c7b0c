import type { FeedState } from "../api/live";
import type { Dashboard } from "../api/types";

/** What every page is given: the newest answer, the coordinator's time, the events, and the address of the page. */
export interface PageProps {
  dash: Dashboard;
  nowS: number;
  /** Whether the answer is too old to say that all is well. */
  isStale: boolean;
  feed: FeedState;
  query: URLSearchParams;
  setQuery: (name: string, value: string | null) => void;
}
