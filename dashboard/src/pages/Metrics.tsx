import { useMemo } from "react";
import { useSeries } from "../api/queries";
import { Chart, MarkList } from "../components/Chart";
import { Empty, Loading, Panel } from "../components/Panel";
import { hasValues } from "../lib/align";
import { formatCount, formatDuration, plural } from "../lib/format";
import { restartMarks } from "../lib/marks";
import { matches } from "../lib/rows";
import type { PageProps } from "./page";

// A job may report hundreds of metrics; more charts than this are asked for by search.
const SHOWN = 24;

export function Metrics({ dash, query, setQuery }: PageProps) {
  const search = query.get("search") ?? "";
  const series = useSeries(dash.job?.job_id ?? null, 600);
  const data = series.data;
  const marks = useMemo(() => (data ? restartMarks(data.marks) : []), [data]);
  const names = useMemo(() => (data ? orderMetrics(Object.keys(data.metrics)) : []), [data]);
  if (!data) return series.error ? <Empty>No series: {series.error.message}.</Empty> : <Loading what="the series" />;
  const found = names.filter((name) => matches(search, name));
  return (
    <>
      <div className="toolbar">
        <label className="field">
          <span className="hidden-text">Search metrics</span>
          <input type="search" placeholder="Search metrics" value={search} onChange={(event) => setQuery("search", event.target.value)} />
        </label>
        <span className="toolbar-end" role="status">
          {found.length === names.length ? plural(names.length, "metric") : `${formatCount(found.length)} of ${plural(names.length, "metric")}`}
        </span>
      </div>
      <Panel title="Reported by the training loop" note={data.at_s.length > 0 ? `one point for ${formatDuration(data.resolution_s)}; failures, restarts and rewinds are marked` : undefined}>
        {names.length === 0 ? (
          <Empty>The training loop has reported no number. It does so with step.report(loss=…).</Empty>
        ) : found.length === 0 ? (
          <Empty>No metric matches the search.</Empty>
        ) : (
          <>
            <div className={found.length === 1 ? "charts charts-wide" : "charts"}>
              {found.slice(0, SHOWN).map((name) => (
                <Chart key={name} title={name} x={data.at_s} lines={[{ label: name, values: data.metrics[name] ?? [] }]} marks={marks} group="metrics" height={180} />
              ))}
            </div>
            {found.length > SHOWN ? <p className="panel-note after">The first {SHOWN}; search for the others.</p> : null}
            <MarkList marks={marks} />
          </>
        )}
      </Panel>
      <Panel title="Steps">
        {hasValues(data.step_s) || hasValues(data.step) ? (
          <div className="charts">
            <Chart title="Step" x={data.at_s} lines={[{ label: "Step", values: data.step }]} format={formatCount} marks={marks} group="metrics" />
            <Chart title="Seconds a step" x={data.at_s} lines={[{ label: "Seconds a step", values: data.step_s }]} format={formatDuration} marks={marks} group="metrics" zero />
          </div>
        ) : (
          <Empty>No step was reported yet.</Empty>
        )}
      </Panel>
    </>
  );
}

/** The loss first, then the others by name. */
export function orderMetrics(names: readonly string[]): string[] {
  return [...names].sort((a, b) => Number(b.includes("loss")) - Number(a.includes("loss")) || a.localeCompare(b, "en", { numeric: true }));
}
