import { useMemo, useState } from "react";
import { useStepTimes } from "../api/queries";
import type { Straggling, Worker } from "../api/types";
import { StateBadge } from "../components/Badge";
import { DataTable, type Column } from "../components/DataTable";
import { HeatMap } from "../components/HeatMap";
import { Name } from "../components/Name";
import { Empty, Loading, Panel } from "../components/Panel";
import { formatAge, formatBytes, formatClock, formatCount, formatDuration, formatValue, isNumber, NONE, plural } from "../lib/format";
import { plainName } from "../lib/names";
import { partLabel } from "../lib/shares";
import { matches, type Sort } from "../lib/rows";
import { lookOf, urgencyOf } from "../lib/states";
import type { PageProps } from "./page";

export function Workers({ dash, nowS, query, setQuery }: PageProps) {
  const search = query.get("search") ?? "";
  const state = query.get("state") ?? "";
  const [sort, setSort] = useState<Sort>({ key: "rank", isDescending: false });
  const states = [...new Set(dash.workers.map((worker) => worker.state))].sort();
  const shown = useMemo(
    () => dash.workers.filter((worker) => (state === "" || worker.state === state) && matches(search, worker.worker_id, worker.host, worker.state, rankText(worker))),
    [dash.workers, search, state],
  );
  const columns = useMemo(() => columnsAt(nowS), [nowS]);
  return (
    <>
      <Stragglers stragglers={dash.goodput?.stragglers ?? []} />
      <StepTimeMap job={dash.job?.job_id ?? null} />
      <div className="toolbar">
        <label className="field">
          <span className="hidden-text">Search workers</span>
          <input type="search" placeholder="Search name, host, rank" value={search} onChange={(event) => setQuery("search", event.target.value)} />
        </label>
        <label className="field">
          State
          <select value={state} onChange={(event) => setQuery("state", event.target.value)}>
            <option value="">All</option>
            {states.map((each) => (
              <option key={each} value={each}>
                {lookOf(each).label}
              </option>
            ))}
          </select>
        </label>
        <span className="toolbar-end" role="status">
          {shown.length === dash.workers.length ? plural(shown.length, "worker") : `${formatCount(shown.length)} of ${plural(dash.workers.length, "worker")}`}
        </span>
      </div>
      <DataTable
        label="Workers"
        rows={shown}
        columns={columns}
        keyOf={(worker) => worker.worker_id}
        sort={sort}
        onSort={setSort}
        isMarked={(worker) => worker.state.toUpperCase() === "FAILED"}
        empty={<Empty>{dash.workers.length === 0 ? "No worker has joined this job." : "No worker matches the search."}</Empty>}
      />
    </>
  );
}

function rankText(worker: Worker): string {
  return worker.rank === null ? "" : `rank ${worker.rank}`;
}

function columnsAt(nowS: number): Column<Worker>[] {
  return [
    {
      key: "worker",
      title: "Worker",
      width: 150, grow: 2,
      cell: (worker) => <Name>{worker.worker_id}</Name>,
      order: (worker) => worker.worker_id,
    },
    { key: "rank", title: "Rank", width: 72, align: "right", cell: (worker) => (worker.rank === null ? NONE : formatCount(worker.rank)), order: (worker) => worker.rank },
    { key: "state", title: "State", width: 130, grow: 1, cell: (worker) => <StateBadge state={worker.state} />, order: (worker) => urgencyOf(worker.state) },
    { key: "step", title: "Step", width: 84, align: "right", cell: (worker) => formatCount(worker.step), order: (worker) => worker.step },
    { key: "lag", title: "Lag", width: 64, align: "right", cell: (worker) => formatCount(worker.lag), order: (worker) => worker.lag },
    {
      key: "own",
      title: "Own step",
      width: 128,
      align: "right",
      cell: (worker) => (
        <span title={worker.straggles ? straggleText(worker.straggles) : undefined} className={worker.straggles ? "slow" : undefined}>
          {formatDuration(worker.own_step_s)}
          {worker.straggles ? ` (${formatValue(worker.straggles.ratio)}×)` : ""}
        </span>
      ),
      order: (worker) => worker.own_step_s,
    },
    { key: "samples", title: "Samples/s", width: 96, align: "right", cell: (worker) => formatValue(worker.samples_per_s), order: (worker) => worker.samples_per_s },
    {
      key: "heartbeat",
      title: "Heartbeat",
      width: 100,
      align: "right",
      cell: (worker) => (worker.last_seen_s === null ? NONE : formatAge(nowS - worker.last_seen_s)),
      order: (worker) => (worker.last_seen_s === null ? null : -worker.last_seen_s),
    },
    { key: "host", title: "Host", width: 110, grow: 1, cell: (worker) => (worker.host ? <Name>{worker.host}</Name> : NONE), order: (worker) => worker.host },
    { key: "gpus", title: "GPUs", width: 64, align: "right", cell: (worker) => formatCount(worker.gpu_count), order: (worker) => worker.gpu_count },
    {
      key: "memory",
      title: "Memory",
      width: 96,
      align: "right",
      cell: (worker) => (worker.memory_bytes > 0 ? formatBytes(worker.memory_bytes) : NONE),
      order: (worker) => worker.memory_bytes,
    },
  ];
}

function straggleText(each: Straggling): string {
  return `${plainName(each.worker_id)}: ${formatDuration(each.step_s)} a step against ${formatDuration(each.median_s)} of the others, for ${plural(each.steps, "step")}; the difference is ${partLabel(each.cause).toLowerCase()}`;
}

function Stragglers({ stragglers }: { stragglers: readonly Straggling[] }) {
  if (stragglers.length === 0) return null;
  return (
    <Panel title="Slow ranks" note="own step time against the others' median, without waiting for others">
      <div className="scroll-x" tabIndex={0} role="region" aria-label="Slow ranks">
      <table className="plain-table">
        <thead>
          <tr>
            <th scope="col">Worker</th>
            <th scope="col" className="right">Rank</th>
            <th scope="col" className="right">Own step</th>
            <th scope="col" className="right">Median</th>
            <th scope="col" className="right">Ratio</th>
            <th scope="col" className="right">For steps</th>
            <th scope="col">Cause</th>
          </tr>
        </thead>
        <tbody>
          {stragglers.slice(0, 10).map((each) => (
            <tr key={each.worker_id}>
              <th scope="row"><Name>{each.worker_id}</Name></th>
              <td className="right">{each.rank}</td>
              <td className="right">{formatDuration(each.step_s)}</td>
              <td className="right">{formatDuration(each.median_s)}</td>
              <td className="right">{formatValue(each.ratio)}×</td>
              <td className="right">{formatCount(each.steps)}</td>
              <td>{partLabel(each.cause)}</td>
            </tr>
          ))}
        </tbody>
      </table>
      </div>
    </Panel>
  );
}

function StepTimeMap({ job }: { job: string | null }) {
  const answer = useStepTimes(job);
  const data = answer.data;
  return (
    <Panel title="Step time by rank" note="own time without waiting for others; a row that stands out is a slow rank, a column a slow moment for all">
      {!data ? (
        answer.error ? <Empty>No step times: {answer.error.message}.</Empty> : <Loading what="step times" />
      ) : data.at_s.length === 0 || data.ranks.length === 0 ? (
        <Empty>No step was reported yet.</Empty>
      ) : (
        <HeatMap
          label="Step time by rank and time"
          rows={data.ranks.map((rank, index) => `Rank ${rank} (${plainName(data.worker_ids[index] ?? "")})`)}
          columns={data.at_s.map((at) => formatClock(at))}
          value={(row, column) => data.rows[row]?.[column] ?? null}
          format={(value) => (isNumber(value) ? formatDuration(value) : "not measured")}
          version={answer.dataUpdatedAt}
        />
      )}
      {data && data.total_ranks > data.ranks.length ? (
        <p className="panel-note after">
          The first {formatCount(data.ranks.length)} of {formatCount(data.total_ranks)} ranks.
        </p>
      ) : null}
    </Panel>
  );
}
