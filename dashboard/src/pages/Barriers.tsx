import { useSeries } from "../api/queries";
import type { Barrier, ReleasedBarrier } from "../api/types";
import { Badge, StateBadge } from "../components/Badge";
import { Chart, MarkList } from "../components/Chart";
import { Name } from "../components/Name";
import { Empty, Loading, Panel, Stat, StatRow } from "../components/Panel";
import { hasValues } from "../lib/align";
import { formatAge, formatCount, formatDuration, formatMoment, NONE, plural } from "../lib/format";
import { restartMarks } from "../lib/marks";
import type { PageProps } from "./page";

export function Barriers({ dash, nowS }: PageProps) {
  const { barriers } = dash;
  if (!barriers) return null;
  return (
    <>
      <StatRow label="Barriers">
        <Stat label="Open now" value={formatCount(barriers.open.length)} />
        <Stat label="Wait p50" value={formatDuration(barriers.wait_p50_s)} note="of the last 1,024" />
        <Stat label="Wait p99" value={formatDuration(barriers.wait_p99_s)} note="of the last 1,024" />
        <Stat label="Released" value={formatCount(barriers.released_total)} note="since the coordinator started" />
      </StatRow>
      <Panel title="Who is missing now" note="barriers at which someone waits">
        {barriers.open.length === 0 ? <Empty>Nobody waits at a barrier.</Empty> : barriers.open.map((barrier) => <OpenBarrier key={`${barrier.name}/${barrier.round}`} barrier={barrier} nowS={nowS} />)}
      </Panel>
      <Waits job={dash.job?.job_id ?? null} />
      <Released released={barriers.released} nowS={nowS} />
    </>
  );
}

function OpenBarrier({ barrier, nowS }: { barrier: Barrier; nowS: number }) {
  const left = barrier.deadline_s - nowS;
  return (
    <article className="open-barrier">
      <header className="open-barrier-head">
        <b>
          <Name>{barrier.name}</Name>
        </b>
        <Badge tone="wait">
          {formatCount(barrier.arrived)} of {formatCount(barrier.expected)} arrived
        </Badge>
        <span className="muted">
          waits since {formatDuration(Math.max(0, nowS - barrier.began_s))}; {left > 0 ? `times out in ${formatDuration(left)}` : "its time is over"}
        </span>
      </header>
      {barrier.missing.length === 0 ? (
        <Empty>{barrier.missing_total > 0 ? `${plural(barrier.missing_total, "worker")} missing.` : "Every known worker has arrived; it waits for workers that have not joined."}</Empty>
      ) : (
        <div className="scroll-x" tabIndex={0} role="region" aria-label="Missing workers">
          <table className="plain-table">
            <caption className="hidden-text">Workers that have not arrived</caption>
            <thead>
              <tr>
                <th scope="col">Missing worker</th>
                <th scope="col" className="right">
                  Rank
                </th>
                <th scope="col">State</th>
                <th scope="col" className="right">
                  Step
                </th>
                <th scope="col" className="right">
                  Heartbeat
                </th>
              </tr>
            </thead>
            <tbody>
              {barrier.missing.map((each) => (
                <tr key={each.worker_id}>
                  <th scope="row">
                    <b>
                      <Name>{each.worker_id}</Name>
                    </b>
                  </th>
                  <td className="right">{formatCount(each.rank)}</td>
                  <td>
                    <StateBadge state={each.state} />
                  </td>
                  <td className="right">{formatCount(each.step)}</td>
                  <td className="right nowrap">{each.last_seen_s === null ? NONE : formatAge(nowS - each.last_seen_s)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      {barrier.missing_total > barrier.missing.length ? <p className="panel-note">and {formatCount(barrier.missing_total - barrier.missing.length)} more</p> : null}
    </article>
  );
}

function Waits({ job }: { job: string | null }) {
  const series = useSeries(job);
  const data = series.data;
  const marks = data ? restartMarks(data.marks) : [];
  return (
    <Panel title="Wait over time" note="how long the first worker waited for the last">
      {!data ? (
        series.error ? <Empty>No series: {series.error.message}.</Empty> : <Loading what="the series" />
      ) : !hasValues(data.barrier_p50_s) ? (
        <Empty>No barrier was released yet.</Empty>
      ) : (
        <>
          <Chart
            title="Barrier wait"
            x={data.at_s}
            lines={[
              { label: "p50", values: data.barrier_p50_s },
              { label: "p99", values: data.barrier_p99_s, dashed: true },
            ]}
            format={formatDuration}
            marks={marks}
            height={200}
            zero
          />
          <MarkList marks={marks} />
        </>
      )}
    </Panel>
  );
}

function Released({ released, nowS }: { released: readonly ReleasedBarrier[]; nowS: number }) {
  return (
    <Panel title="Last released" note="newest first">
      {released.length === 0 ? (
        <Empty>No barrier was released since the coordinator started.</Empty>
      ) : (
        <div className="scroll-x" tabIndex={0} role="region" aria-label="Released barriers">
          <table className="plain-table">
            <thead>
              <tr>
                <th scope="col">Barrier</th>
                <th scope="col" className="right">
                  Workers
                </th>
                <th scope="col" className="right">
                  Wait
                </th>
                <th scope="col">Last to arrive</th>
                <th scope="col" className="right">
                  Released
                </th>
              </tr>
            </thead>
            <tbody>
              {[...released]
                .reverse()
                .slice(0, 20)
                .map((each, index) => (
                  <tr key={index}>
                    <th scope="row">
                      <Name>{each.name}</Name>
                    </th>
                    <td className="right">{formatCount(each.workers)}</td>
                    <td className="right nowrap">{formatDuration(each.waited_s)}</td>
                    <td>
                      <Name>{each.last_worker}</Name>
                    </td>
                    <td className="right nowrap">{each.released_s === null ? NONE : formatMoment(each.released_s, nowS)}</td>
                  </tr>
                ))}
            </tbody>
          </table>
        </div>
      )}
    </Panel>
  );
}
