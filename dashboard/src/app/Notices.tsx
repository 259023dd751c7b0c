import { ApiError } from "../api/fetch";
import type { Dashboard } from "../api/types";
import { Name } from "../components/Name";
import { Panel } from "../components/Panel";
import type { Freshness } from "../lib/freshness";

/** Over old numbers: since when they are old, and why. */
export function StaleNotice({ freshness }: { freshness: Freshness }) {
  return (
    <p className="notice notice-bad stale-notice">
      <b role="alert">These numbers are old.</b>
      <span>
        {freshness.label}: {freshness.detail}. The page goes on asking; workers train on without the coordinator.
      </span>
    </p>
  );
}

/** Nothing was ever answered. */
export function Unreachable({ error, job, onReset }: { error: Error | null; job: string | null; onReset: () => void }) {
  const isUnknownJob = error instanceof ApiError && error.status === 404 && job !== null;
  return (
    <Panel title={isUnknownJob ? "No such job" : "The coordinator does not answer"}>
      <p role="alert">
        <Name>{error?.message ?? "no answer"}</Name>.
      </p>
      {isUnknownJob ? (
        <p>
          <button type="button" className="button" onClick={onReset}>
            Show the busiest job
          </button>
        </p>
      ) : (
        <p className="muted">
          The page goes on asking. Is the coordinator running? <code>strata status</code> asks it over gRPC.
        </p>
      )}
    </Panel>
  );
}

export function NoJobs({ dash }: { dash: Dashboard }) {
  return (
    <Panel title="No job yet">
      <p>
        The coordinator (version {dash.coordinator.version}) runs and has seen no worker. A job appears here as soon as its first worker joins:
      </p>
      <pre className="command">
        strata run --coordinator HOST:{dash.coordinator.grpc_port} --nproc 4 train.py
      </pre>
    </Panel>
  );
}
