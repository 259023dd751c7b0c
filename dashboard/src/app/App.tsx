import { ApiError } from "../api/fetch";
import { useDashboard } from "../api/queries";
import { useEvents } from "../api/useEvents";
import { Loading } from "../components/Panel";
import { judgeFreshness } from "../lib/freshness";
import { useNow } from "../lib/now";
import { TITLES, useRoute, type PageName } from "../lib/route";
import { useTitle } from "../lib/theme";
import { Barriers } from "../pages/Barriers";
import { Checkpoints } from "../pages/Checkpoints";
import { Compare } from "../pages/Compare";
import { Data } from "../pages/Data";
import { Events } from "../pages/Events";
import { Metrics } from "../pages/Metrics";
import { Overview } from "../pages/Overview";
import type { PageProps } from "../pages/page";
import { Workers } from "../pages/Workers";
import { Fault } from "./Fault";
import { NoJobs, StaleNotice, Unreachable } from "./Notices";
import { Side } from "./Side";
import { SignOut } from "./SignOut";
import { ThemeSwitch } from "./ThemeSwitch";
import { TopBar } from "./TopBar";

const VIEWS: Readonly<Record<PageName, (props: PageProps) => React.ReactNode>> = {
  overview: Overview,
  workers: Workers,
  data: Data,
  checkpoints: Checkpoints,
  barriers: Barriers,
  charts: Metrics,
  events: Events,
  compare: Compare,
};

export function App() {
  const { page, query, setQuery } = useRoute();
  const asked = query.get("job");
  const answer = useDashboard(asked);
  const now = useNow();
  const dash = answer.data ?? null;
  const job = dash?.job ?? null;
  const feed = useEvents(asked ?? job?.job_id ?? null);
  const error = answer.error?.message ?? null;
  const freshness = judgeFreshness({
    answerAgeS: answer.dataUpdatedAt > 0 ? Math.max(0, now.localS - answer.dataUpdatedAt / 1000) : null,
    mode: feed.mode,
    error,
    isRefused: answer.error instanceof ApiError && answer.error.status === 404,
  });
  useTitle(titleOf(page, job?.job_id ?? null, job?.state ?? null));
  const View = VIEWS[page];
  return (
    <div className={freshness.isStale && dash ? "app is-stale" : "app"}>
      <a className="skip" href="#content">
        Skip to content
      </a>
      <Side page={page} query={query} dash={dash} />
      <div className="main">
        <TopBar page={page} dash={dash} job={asked ?? job?.job_id ?? null} onJob={(next) => setQuery("job", next)} freshness={freshness} />
        <main id="content" className="content" tabIndex={-1}>
          {freshness.isStale && dash ? <StaleNotice freshness={freshness} /> : null}
          {dash === null ? error ? <Unreachable error={answer.error} job={asked} onReset={() => setQuery("job", null)} /> : <Loading what="the state of the run" /> : null}
          {dash !== null && job === null && page !== "events" ? <NoJobs dash={dash} /> : null}
          {dash !== null && (job !== null || page === "events") ? (
            <Fault key={page}>
              <View dash={dash} nowS={now.coordinatorS} isStale={freshness.isStale} feed={feed} query={query} setQuery={setQuery} />
            </Fault>
          ) : null}
        </main>
        <footer className="phone-foot">
          <ThemeSwitch />
          <SignOut />
        </footer>
      </div>
    </div>
  );
}

function titleOf(page: PageName, job: string | null, state: string | null): string {
  const where = TITLES[page];
  return job === null ? `${where} · Strata` : `${job}${state ? ` (${state})` : ""} · ${where} · Strata`;
}
