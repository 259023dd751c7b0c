import { useState } from "react";
import { useAudit } from "../api/queries";
import type { Audit, Dataset, SampleSet } from "../api/types";
import { Badge } from "../components/Badge";
import { Bars } from "../components/Bars";
import { Name } from "../components/Name";
import { Empty, Loading, Panel } from "../components/Panel";
import { formatCount, formatShare, plural } from "../lib/format";
import { plainName } from "../lib/names";
import { balanceOf } from "../lib/shards";
import type { PageProps } from "./page";

export function Data({ dash }: PageProps) {
  if (dash.datasets.length === 0) {
    return (
      <Panel title="Datasets">
        <Empty>This job has registered no dataset. A dataset appears here when a worker opens one with run.dataset or registers it.</Empty>
      </Panel>
    );
  }
  return dash.datasets.map((dataset) => <DatasetPanel key={dataset.dataset_id} dataset={dataset} job={dash.job?.job_id ?? null} />);
}

function DatasetPanel({ dataset, job }: { dataset: Dataset; job: string | null }) {
  const balance = balanceOf(dataset);
  return (
    <Panel
      title={plainName(dataset.dataset_id)}
      note={`${plural(dataset.total_samples, "sample")} in ${plural(dataset.total_shards, "shard")}; ${dataset.order} order${dataset.shuffle ? `, shuffled with seed ${dataset.seed}` : ", not shuffled"}`}
    >
      <div className="grid-2">
        <div>
          <h3 className="subhead">Shards by worker</h3>
          {balance ? (
            <>
              <ShardBars dataset={dataset} most={balance.most} />
              <dl className="facts">
                <div>
                  <dt>Fewest and most</dt>
                  <dd>
                    {formatCount(balance.fewest)} and {formatCount(balance.most)}
                  </dd>
                </div>
                <div>
                  <dt>Moved at the last change of workers</dt>
                  <dd>{dataset.moved_shards === null ? "not known" : `${formatCount(dataset.moved_shards)} of ${plural(balance.shards, "shard")}`}</dd>
                </div>
              </dl>
            </>
          ) : (
            <Empty>
              {dataset.order === "global"
                ? "In the global order every global batch is split over all ranks, so no shard belongs to one worker and none moves."
                : "No shard is dealt to a worker now."}
            </Empty>
          )}
        </div>
        <div>
          <h3 className="subhead">Epochs</h3>
          <Epochs dataset={dataset} />
        </div>
      </div>
      <AuditView dataset={dataset} job={job} />
    </Panel>
  );
}

// Up to so many workers have a line each; more of them are one picture.
const NAMED = 16;

function ShardBars({ dataset, most }: { dataset: Dataset; most: number }) {
  if (dataset.shards.length > NAMED) {
    return (
      <Bars
        label={`Shards of ${plainName(dataset.dataset_id)} by worker`}
        bars={dataset.shards.map((each) => ({ label: plainName(each.worker_id), value: each.shards }))}
        format={(value) => plural(value, "shard")}
      />
    );
  }
  return (
    <ul className="epochs" aria-label="Shards by worker">
      {dataset.shards.map((each) => (
        <li key={each.worker_id}>
          <span className="ellipsis">
            <Name>{each.worker_id}</Name>
          </span>
          <span className="meter" aria-hidden="true">
            <span style={{ width: `${most > 0 ? (each.shards / most) * 100 : 0}%` }} />
          </span>
          <span className="right nowrap">{plural(each.shards, "shard")}</span>
        </li>
      ))}
    </ul>
  );
}

function Epochs({ dataset }: { dataset: Dataset }) {
  if (dataset.epochs.length === 0) return <Empty>Nothing of it was seen by the model yet.</Empty>;
  return (
    <ul className="epochs">
      {[...dataset.epochs].reverse().map((epoch) => {
        const share = epoch.total_samples > 0 ? epoch.seen_samples / epoch.total_samples : 0;
        return (
          <li key={epoch.epoch}>
            <span className="nowrap">Epoch {formatCount(epoch.epoch)}</span>
            <span className="meter" role="progressbar" aria-label={`Epoch ${epoch.epoch}`} aria-valuenow={Math.round(share * 100)} aria-valuemin={0} aria-valuemax={100}>
              <span style={{ width: `${Math.min(1, share) * 100}%` }} />
            </span>
            <span className="right nowrap">
              {formatShare(share)} <span className="muted">{formatCount(epoch.seen_samples)} seen</span>
            </span>
          </li>
        );
      })}
    </ul>
  );
}

function AuditView({ dataset, job }: { dataset: Dataset; job: string | null }) {
  const [epoch, setEpoch] = useState<number | null>(null);
  const answer = useAudit(job, dataset.dataset_id, epoch);
  const audit = answer.data?.audit ?? null;
  return (
    <div className="audit">
      <div className="toolbar">
        <h3 className="subhead">Audit</h3>
        {dataset.epochs.length > 1 ? (
          <label className="field">
            Epoch
            <select value={epoch ?? ""} onChange={(event) => setEpoch(event.target.value === "" ? null : Number(event.target.value))}>
              <option value="">Newest</option>
              {dataset.epochs.map((each) => (
                <option key={each.epoch} value={each.epoch}>
                  {each.epoch}
                </option>
              ))}
            </select>
          </label>
        ) : null}
      </div>
      {audit ? <AuditTable audit={audit} /> : answer.error ? <Empty>No audit: {answer.error.message}.</Empty> : <Loading what="the audit" />}
    </div>
  );
}

function AuditTable({ audit }: { audit: Audit }) {
  const isUnderWay = audit.missing.samples > 0 && audit.repeated.samples === 0;
  return (
    <>
      <p>
        <Badge tone={audit.exactly_once ? "ok" : isUnderWay ? "wait" : "bad"}>
          {audit.exactly_once
            ? `Epoch ${audit.epoch}: every sample was seen exactly once`
            : isUnderWay
              ? `Epoch ${audit.epoch}: none was seen twice, ${formatCount(audit.missing.samples)} still to come`
              : `Epoch ${audit.epoch}: not exactly once`}
        </Badge>
      </p>
      <table className="plain-table after">
        <thead>
          <tr>
            <th scope="col">Samples</th>
            <th scope="col" className="right">
              Count
            </th>
            <th scope="col">First ranges</th>
          </tr>
        </thead>
        <tbody>
          <AuditRow title="Not seen" set={audit.missing} />
          <AuditRow title="Seen more than once" set={audit.repeated} />
          <AuditRow title="Skipped on purpose" set={audit.skipped} />
        </tbody>
      </table>
    </>
  );
}

function AuditRow({ title, set }: { title: string; set: SampleSet }) {
  const ranges = set.ranges.slice(0, 6).map(([from, to]) => `${formatCount(from)} to ${formatCount(to - 1)}`);
  return (
    <tr>
      <th scope="row">{title}</th>
      <td className="right">{formatCount(set.samples)}</td>
      <td className="muted">
        <Name>{ranges.length > 0 ? `${ranges.join(", ")}${set.ranges.length > 6 ? ", …" : ""}` : "none"}</Name>
      </td>
    </tr>
  );
}
