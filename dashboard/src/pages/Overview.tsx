import { useSeries } from "../api/queries";
import type { Dashboard, EventEntry, JobSummary } from "../api/types";
import { Badge, Glyph, StateBadge } from "../components/Badge";
import { Chart, MarkList } from "../components/Chart";
import { EventLine } from "../components/EventLine";
import { Name } from "../components/Name";
import { PageLink } from "../components/PageLink";
import { Empty, Loading, Panel, Stat, StatRow } from "../components/Panel";
import { ShareBar } from "../components/ShareBar";
import { hasValues } from "../lib/align";
import { findProblems } from "../lib/attention";
import { formatAge, formatCount, formatDuration, formatRate, formatShare, formatSpeed, formatValue, isNumber, NONE, plural } from "../lib/format";
import { isRoutine } from "../lib/eventTone";
import { restartMarks } from "../lib/marks";
import { timeShares } from "../lib/shares";
import type { PageProps } from "./page";

export function Overview({ dash, nowS, isStale, feed, query }: PageProps) {
  const { job } = dash;
  if (!job) return null;
  return (
    <>
      <Headline job={job} nowS={nowS} />
      <Attention dash={dash} nowS={nowS} isStale={isStale} query={query} />
      <Numbers dash={dash} />
      <div className="grid-main">
        <div className="stack">
          <Throughput dash={dash} />
          <Loss dash={dash} />
        </div>
        <div className="stack">
          <WhereTimeWent dash={dash} />
          <Panel
            title="Latest events"
            note="without routine checkpoints"
            actions={
              <PageLink page="events" query={query}>
                All events
              </PageLink>
            }
          >
            <LatestEvents items={feed.items} nowS={nowS} />
          </Panel>
        </div>
      </div>
    </>
  );
}

function Headline({ job, nowS }: { job: JobSummary; nowS: number }) {
  const share = job.total_steps ? Math.min(1, job.step / job.total_steps) : null;
  return (
    <section className="headline" aria-label="State of the job">
      <div className="headline-state">
        <StateBadge state={job.state} />
        {job.reason ? (
          <span className="muted">
            <Name>{job.reason}</Name>
          </span>
        ) : null}
      </div>
      <div className="headline-step">
        <b>Step {formatCount(job.step)}</b>
        {job.total_steps ? <span className="muted"> of {formatCount(job.total_steps)}</span> : null}
        <span className="muted"> · epoch {formatCount(job.epoch)}</span>
        {job.last_step_s !== null ? <span className="muted"> · last step {formatAge(nowS - job.last_step_s)}</span> : null}
      </div>
      <div className="headline-team muted">
        {plural(job.workers, "worker")}
        {job.departed > 0 ? `, ${formatCount(job.departed)} departed` : ""} · generation {formatCount(job.generation)}
      </div>
      {share !== null ? (
        <div className="meter headline-meter" role="progressbar" aria-label="Steps done" aria-valuenow={Math.round(share * 100)} aria-valuemin={0} aria-valuemax={100}>
          <span style={{ width: `${share * 100}%` }} />
        </div>
      ) : null}
    </section>
  );
}

function Attention({ dash, nowS, isStale, query }: { dash: Dashboard; nowS: number; isStale: boolean; query: URLSearchParams }) {
  const problems = findProblems(dash, nowS);
  if (problems.length === 0) {
    return (
      <p className="notice">
        {isStale ? <Badge tone="wait">Nothing needed attention when the coordinator last answered; what needs it now is not known.</Badge> : <Badge tone="ok">Nothing needs attention.</Badge>}
      </p>
    );
  }
  return (
    <ul className="attention" aria-label="Needs attention">
      {problems.map((problem, index) => (
        <li key={index} className={`notice notice-${problem.tone === "bad" ? "bad" : "warn"}`}>
          <Glyph tone={problem.tone} />
          <span className="attention-text">
            <Name>{problem.text}</Name>
          </span>
          {problem.page !== "overview" ? (
            <PageLink page={problem.page} query={query}>
              See {problem.page}
            </PageLink>
          ) : null}
        </li>
      ))}
    </ul>
  );
}

function Numbers({ dash }: { dash: Dashboard }) {
  const { metrics, goodput, job } = dash;
  if (!metrics) return null;
  const risk = metrics.steps_at_risk;
  const riskS = isNumber(risk) && isNumber(job?.step_s) ? risk * job.step_s : null;
  return (
    <StatRow label="The numbers of the run">
      <Stat label="Goodput" value={formatShare(metrics.goodput)} note={metrics.recent_goodput !== null ? `${formatShare(metrics.recent_goodput)} in 10 min` : "share of time that became kept steps"} />
      <Stat label="Steps" value={formatValue(metrics.steps_per_s)} unit="/s" note={isNumber(job?.step_s) ? `${formatDuration(job.step_s)} a step` : "no step measured"} />
      <Stat label="Samples" value={formatValue(metrics.samples_per_s)} unit="/s" note={metrics.tokens_per_s !== null ? formatRate(metrics.tokens_per_s, "tokens/s") : undefined} />
      <Stat label="Steps at risk" value={formatCount(risk)} note={riskS !== null ? `${formatDuration(riskS)} of training` : job?.committed_step === null ? "no checkpoint yet" : "since the last checkpoint"} />
      <Stat label="Checkpoint" value={formatSpeed(metrics.checkpoint_bytes_per_s)} note={job && job.committed_step !== null ? `last at step ${formatCount(job.committed_step)}` : "none committed"} />
      <Stat label="Barrier wait p99" value={formatDuration(metrics.barrier_p99_s)} note={`p50 ${formatDuration(metrics.barrier_p50_s)}`} />
      <Stat label="Between failures" value={metrics.failures > 0 ? formatDuration(metrics.mtbf_s) : NONE} note={metrics.failures > 0 ? plural(metrics.failures, "failure") : goodput ? `no failure in ${formatDuration(goodput.wall_s)}` : "no failure"} />
      <Stat label="Coordinator" value={formatValue(metrics.requests_per_s)} unit="req/s" note={plural(dash.coordinator.channels, "connection")} />
    </StatRow>
  );
}

function WhereTimeWent({ dash }: { dash: Dashboard }) {
  const { goodput } = dash;
  return (
    <Panel title="Where the time went" note={goodput && goodput.wall_s > 0 ? `${formatDuration(goodput.wall_s)} of wall time` : undefined}>
      {goodput && goodput.wall_s > 0 ? (
        <>
          <ShareBar shares={timeShares(goodput)} label="Wall time by what it was spent on" />
          <p className="panel-note after">
            {plural(goodput.steps, "step")} kept, {formatCount(goodput.repeated_steps)} done again.
            {goodput.restarts.length > 0 ? (
              <>
                {" "}
                New generations by cause: <Name>{goodput.restarts.map((each) => `${each.cause.replaceAll("_", " ")} ${each.count}`).join(", ")}</Name>.
              </>
            ) : null}
          </p>
        </>
      ) : (
        <Empty>No worker has reported time yet. Workers that train with strata.join report it every few seconds.</Empty>
      )}
    </Panel>
  );
}

function Throughput({ dash }: { dash: Dashboard }) {
  const series = useSeries(dash.job?.job_id ?? null);
  const data = series.data;
  const marks = data ? restartMarks(data.marks) : [];
  return (
    <Panel title="Throughput" note={data && data.at_s.length > 0 ? `one point for ${formatDuration(data.resolution_s)}` : undefined}>
      {!data ? (
        series.error ? <Empty>No series: {series.error.message}.</Empty> : <Loading what="the series" />
      ) : data.at_s.length === 0 ? (
        <Empty>Nothing was measured yet. Points appear a few seconds after the first step.</Empty>
      ) : (
        <>
          <div className="charts">
            <Chart title="Steps/s" x={data.at_s} lines={[{ label: "Steps/s", values: data.steps_per_s }]} marks={marks} group="overview" zero />
            <Chart title="Samples/s" x={data.at_s} lines={[{ label: "Samples/s", values: data.samples_per_s }]} marks={marks} group="overview" zero />
            <Chart title="Checkpoint writes" x={data.at_s} lines={[{ label: "Checkpoint writes", values: data.checkpoint_bytes_per_s }]} format={formatSpeed} marks={marks} group="overview" zero />
            <Chart title="Coordinator requests/s" x={data.at_s} lines={[{ label: "Coordinator requests/s", values: data.requests_per_s }]} marks={marks} group="overview" zero />
          </div>
          <MarkList marks={marks} />
        </>
      )}
    </Panel>
  );
}

/** The curve that everyone looks for first, if the training loop reports it. */
function Loss({ dash }: { dash: Dashboard }) {
  const { data } = useSeries(dash.job?.job_id ?? null);
  const loss = data?.metrics.loss;
  if (!data || !loss || !hasValues(loss)) return null;
  return (
    <Panel title="Loss" note="as the training loop reports it">
      <Chart title="loss" x={data.at_s} lines={[{ label: "loss", values: loss }]} marks={restartMarks(data.marks)} group="overview" height={170} />
    </Panel>
  );
}

function LatestEvents({ items: all, nowS }: { items: readonly EventEntry[]; nowS: number }) {
  const items = all.filter((event) => !isRoutine(event));
  if (items.length === 0) return <Empty>Nothing but routine has happened yet.</Empty>;
  return (
    <ol className="events" aria-label="Latest events, newest first">
      {items
        .slice(-8)
        .reverse()
        .map((event) => (
          <li key={event.position}>
            <EventLine event={event} nowS={nowS} />
          </li>
        ))}
    </ol>
  );
}
