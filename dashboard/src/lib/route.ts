import { useCallback, useSyncExternalStore } from "react";

// One flat level of pages, so that relative addresses of assets and of the API work under any prefix. The page of the
// metrics is "charts", since Prometheus reads /metrics.
export const PAGES = ["overview", "workers", "data", "checkpoints", "barriers", "charts", "events", "compare"] as const;
export type PageName = (typeof PAGES)[number];

export const TITLES: Readonly<Record<PageName, string>> = {
  overview: "Overview",
  workers: "Workers",
  data: "Data",
  checkpoints: "Checkpoints",
  barriers: "Barriers",
  charts: "Metrics",
  events: "Events",
  compare: "Compare",
};

const CHANGED = "strata:route";

export function pageOf(pathname: string): PageName {
  const last = pathname.slice(pathname.lastIndexOf("/") + 1);
  return PAGES.find((page) => page === last) ?? "overview";
}

export function linkTo(page: PageName, query: URLSearchParams): string {
  const kept = new URLSearchParams();
  const job = query.get("job");
  if (job) kept.set("job", job);
  const text = kept.toString();
  return `./${page === "overview" ? "" : page}${text ? `?${text}` : ""}`;
}

export function go(href: string): void {
  history.pushState(null, "", href);
  dispatchEvent(new Event(CHANGED));
}

function subscribe(listener: () => void): () => void {
  addEventListener("popstate", listener);
  addEventListener(CHANGED, listener);
  return () => {
    removeEventListener("popstate", listener);
    removeEventListener(CHANGED, listener);
  };
}

export function useRoute(): { page: PageName; query: URLSearchParams; setQuery: (name: string, value: string | null) => void } {
  const pathname = useSyncExternalStore(subscribe, () => location.pathname);
  const search = useSyncExternalStore(subscribe, () => location.search);
  const setQuery = useCallback((name: string, value: string | null) => {
    const next = new URLSearchParams(location.search);
    if (value === null || value === "") next.delete(name);
    else next.set(name, value);
    history.replaceState(null, "", next.size > 0 ? `?${next.toString()}` : location.pathname);
    dispatchEvent(new Event(CHANGED));
  }, []);
  return { page: pageOf(pathname), query: new URLSearchParams(search), setQuery };
}
