import { useGoodput, useSeries } from "../api/queries";
import type { Goodput, JobSummary, Series } from "../api/types";
import { StateBadge } from "../components/Badge";
import { Chart } from "../components/Chart";
import { Name } from "../components/Name";
import { Empty, Panel } from "../components/Panel";
import { alignCurves, hasValues, sinceBegin } from "../lib/align";
import { formatCount, formatDuration, formatShare, formatValue } from "../lib/format";
import { plainName } from "../lib/names";
import { timeShares } from "../lib/shares";
import { orderMetrics } from "./Metrics";
import type { PageProps } from "./page";

interface Side {
  job: JobSummary;
  goodput: Goodput | undefined;
  series: Series | undefined;
}

export function Compare({ dash, query, setQuery }: PageProps) {
  const first = dash.job;
  const others = dash.jobs.filter((job) => job.job_id !== first?.job_id);
  const second = others.find((job) => job.job_id === query.get("with")) ?? others[0] ?? null;
  const goodput = [useGoodput(first?.job_id ?? null), useGoodput(second?.job_id ?? null)] as const;
  const series = [useSeries(first?.job_id ?? null), useSeries(second?.job_id ?? null)] as const;
  if (!first || !second) {
    return (
      <Panel title="Compare two jobs">
        <Empty>This coordinator knows one job. A second one can be compared with it as soon as its first worker joins.</Empty>
      </Panel>
    );
  }
  const sides: [Side, Side] = [
    { job: first, goodput: goodput[0].data, series: series[0].data },
    { job: second, goodput: goodput[1].data, series: series[1].data },
  ];
  return (
    <>
      <div className="toolbar">
        <span>
          <b>
            <Name>{first.job_id}</Name>
          </b>{" "}
          against
        </span>
        <label className="field">
          <span className="hidden-text">The other job</span>
          <select value={second.job_id} onChange={(event) => setQuery("with", event.target.value)}>
            {others.map((job) => (
              <option key={job.job_id} value={job.job_id}>
                {plainName(job.job_id)}
              </option>
            ))}
          </select>
        </label>
      </div>
      <Panel title="Numbers">
        <div className="scroll-x" tabIndex={0} role="region" aria-label="Numbers of both jobs">
          <Numbers sides={sides} />
        </div>
      </Panel>
      <Curves sides={sides} />
    </>
  );
}

function Numbers({ sides }: { sides: [Side, Side] }) {
  const rows: [string, (side: Side) => React.ReactNode][] = [
    ["State", ({ job }) => <StateBadge state={job.state} />],
    ["Goodput", ({ goodput }) => formatShare(goodput?.goodput)],
    ["Wall time", ({ goodput }) => formatDuration(goodput?.wall_s)],
    ["Step", ({ job }) => formatCount(job.step)],
    ["Steps/s", ({ job }) => formatValue(job.steps_per_s)],
    ["Samples/s", ({ job }) => formatValue(job.samples_per_s)],
    ["Workers", ({ job }) => formatCount(job.workers)],
    ["Steps done again", ({ goodput }) => formatCount(goodput?.repeated_steps)],
    ["Failures", ({ job }) => formatCount(job.failures)],
    ["Between failures", ({ goodput }) => formatDuration(goodput?.mtbf_s)],
    ["Steps at risk", ({ job }) => formatCount(job.steps_at_risk)],
  ];
  const parts = [...new Map(sides.flatMap(({ goodput }) => (goodput ? timeShares(goodput) : [])).map((share) => [share.key, share.label])).entries()];
  return (
    <table className="plain-table">
      <thead>
        <tr>
          <th scope="col">
            <span className="hidden-text">Number</span>
          </th>
          {sides.map(({ job }, index) => (
            <th scope="col" className="right" key={index}>
              <span className="swatch" style={{ background: `var(--c${index + 1})` }} aria-hidden="true" />
              <Name>{job.job_id}</Name>
            </th>
          ))}
        </tr>
      </thead>
      <tbody>
        {rows.map(([title, read]) => (
          <tr key={title}>
            <th scope="row">{title}</th>
            {sides.map((side, index) => (
              <td className="right nowrap" key={index}>
                {read(side)}
              </td>
            ))}
          </tr>
        ))}
        {parts.map(([key, label]) => (
          <tr key={key}>
            <th scope="row">Time: {label.toLowerCase()}</th>
            {sides.map(({ goodput }, index) => {
              const part = goodput?.parts.find((each) => each.part === key);
              return (
                <td className="right nowrap" key={index}>
                  {formatShare(part?.share)} <span className="muted">{formatDuration(part?.seconds)}</span>
                </td>
              );
            })}
          </tr>
        ))}
      </tbody>
    </table>
  );
}

function Curves({ sides }: { sides: [Side, Side] }) {
  const [a, b] = sides;
  if (!a.series || !b.series) return null;
  const known = [a.series, b.series] as const;
  const shared = orderMetrics(Object.keys(known[0].metrics).filter((name) => name in known[1].metrics)).slice(0, 12);
  const curves: [string, (series: Series) => readonly (number | null)[]][] = [
    ["Steps/s", (series) => series.steps_per_s],
    ["Samples/s", (series) => series.samples_per_s],
    ...shared.map((name): [string, (series: Series) => readonly (number | null)[]] => [name, (series) => series.metrics[name] ?? []]),
  ];
  const drawn = curves.filter(([, read]) => known.some((series) => hasValues(read(series))));
  return (
    <Panel title="Curves" note="by the time since each job began; metrics that both report">
      {drawn.length === 0 ? (
        <Empty>Nothing was measured of either job yet.</Empty>
      ) : (
        <div className="charts">
          {drawn.map(([title, read]) => {
            const { x, values } = alignCurves(sides.map(({ series, goodput }) => ({ x: sinceBegin(series?.at_s ?? [], goodput?.began_s ?? null), values: series ? read(series) : [] })));
            return <Chart key={title} title={title} x={x} axis="elapsed" lines={sides.map(({ job }, index) => ({ label: job.job_id, values: values[index] ?? [], dashed: index === 1 }))} height={180} group="compare" joined />;
          })}
        </div>
      )}
    </Panel>
  );
}
