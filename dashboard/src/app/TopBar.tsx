import type { Dashboard } from "../api/types";
import { Badge, StateBadge } from "../components/Badge";
import { plainName } from "../lib/names";
import type { Freshness } from "../lib/freshness";
import { TITLES, type PageName } from "../lib/route";

interface TopBarProps {
  page: PageName;
  dash: Dashboard | null;
  job: string | null;
  onJob: (job: string) => void;
  freshness: Freshness;
}

export function TopBar({ page, dash, job, onJob, freshness }: TopBarProps) {
  const jobs = dash?.jobs.map((each) => each.job_id) ?? [];
  const names = job !== null && !jobs.includes(job) ? [job, ...jobs] : jobs;
  return (
    <header className="top">
      <h1>{TITLES[page]}</h1>
      <div className="top-job">
        {names.length > 0 ? (
          <label className="field">
            <span className="field-word">Job</span>
            <select value={job ?? ""} onChange={(event) => onJob(event.target.value)}>
              {names.map((name) => (
                <option key={name} value={name}>
                  {plainName(name)}
                </option>
              ))}
            </select>
          </label>
        ) : null}
        {dash?.job ? <StateBadge state={dash.job.state} /> : null}
      </div>
      <div className="top-end">
        <span title={freshness.detail} data-testid="freshness">
          <Badge tone={freshness.tone}>{freshness.label}</Badge>
        </span>
        {/* Heard once when it changes, and not every second as the age is counted. */}
        <span role="status" className="hidden-text">
          {freshness.isStale ? "The coordinator does not answer" : freshness.label}
        </span>
      </div>
    </header>
  );
}
