import { useMemo, useState } from "react";
import type { Checkpoint, SavePhases } from "../api/types";
import { Badge, StateBadge } from "../components/Badge";
import { DataTable, type Column } from "../components/DataTable";
import { Name } from "../components/Name";
import { Empty, Panel, Stat, StatRow } from "../components/Panel";
import { SaveTimeline } from "../components/SaveTimeline";
import { formatAge, formatBytes, formatCount, formatDuration, formatMoment, formatShare, formatSpeed, listNames, NONE } from "../lib/format";
import type { Sort } from "../lib/rows";
import { longestSave, PHASES, savedShare, totalPhases } from "../lib/saves";
import { urgencyOf } from "../lib/states";
import type { PageProps } from "./page";

export function Checkpoints({ dash, nowS }: PageProps) {
  const { checkpoints, job } = dash;
  const [sort, setSort] = useState<Sort>({ key: "step", isDescending: true });
  const longest = longestSave(checkpoints);
  const columns = useMemo(() => columnsAt(nowS, longest), [nowS, longest]);
  const committed = checkpoints.filter((each) => each.state === "committed");
  const newest = committed[0];
  const written = committed.reduce((sum, each) => sum + (each.size_bytes ?? 0), 0);
  const full = committed.reduce((sum, each) => sum + (each.full_bytes ?? each.size_bytes ?? 0), 0);
  const open = checkpoints.filter((each) => each.state === "collecting" || each.state === "writing");
  return (
    <>
      <StatRow label="Checkpoints">
        <Stat label="Last committed" value={newest ? formatCount(newest.step) : NONE} note={newest?.committed_s ? formatAge(nowS - newest.committed_s) : newest ? "time not known" : "none yet"} />
        <Stat label="Steps at risk" value={formatCount(job?.steps_at_risk)} note="done since that step" />
        <Stat label="Speed" value={formatSpeed(newest?.bytes_per_s)} note="of the last one, until committed" />
        <Stat label="Size" value={formatBytes(newest?.full_bytes ?? newest?.size_bytes)} note="of the whole state" />
        <Stat label="Saved by deltas" value={full > 0 && written < full ? formatShare(1 - written / full) : NONE} note={full > 0 && written < full ? `${formatBytes(full - written)} not written again` : "every checkpoint is a full one"} />
      </StatRow>
      <Panel title="Timeline" note={checkpoints.length > 0 ? `the newest ${formatCount(checkpoints.length)}; solid is what was written, the outline is the whole state` : undefined}>
        {checkpoints.length === 0 ? <Empty>No checkpoint was begun. A job saves when it is told to, for example with save_every="10 minutes".</Empty> : <SaveTimeline checkpoints={checkpoints} nowS={nowS} />}
      </Panel>
      {open.map((each) => (
        <p className="notice" key={each.step}>
          <StateBadge state={each.state} />
          <span>
            Step {formatCount(each.step)}: {formatCount(each.parts)} of {formatCount(each.expected_parts)} parts are in
            {each.missing.length > 0 ? (
              <>
                ; missing from <Name>{listNames(each.missing)}</Name>
              </>
            ) : null}
            .
          </span>
        </p>
      ))}
      {longest > 0 ? (
        <p className="phase-key panel-note">
          Phases of the slowest worker:
          {PHASES.map(({ key, label, colour }) => (
            <span key={key}>
              <span className="swatch" style={{ background: `var(${colour})` }} aria-hidden="true" />
              {label}
            </span>
          ))}
        </p>
      ) : null}
      <DataTable label="Checkpoints" rows={checkpoints} columns={columns} keyOf={(each) => `${each.step}/${each.state}`} sort={sort} onSort={setSort} isMarked={(each) => each.state === "rejected" || each.diverged === true} empty={<Empty>No checkpoint.</Empty>} maxHeight="60vh" />
    </>
  );
}

function columnsAt(nowS: number, longest: number): Column<Checkpoint>[] {
  return [
    { key: "step", title: "Step", width: 88, align: "right", cell: (each) => formatCount(each.step), order: (each) => each.step },
    { key: "state", title: "State", width: 150, grow: 1, cell: (each) => <StateCell each={each} />, order: (each) => urgencyOf(each.state) },
    { key: "when", title: "Committed", width: 132, cell: (each) => (each.committed_s === null ? NONE : formatMoment(each.committed_s, nowS)), order: (each) => each.committed_s },
    { key: "size", title: "Written", width: 92, align: "right", cell: (each) => formatBytes(each.size_bytes), order: (each) => each.size_bytes },
    { key: "full", title: "Whole state", width: 104, align: "right", cell: (each) => formatBytes(each.full_bytes), order: (each) => each.full_bytes },
    { key: "saved", title: "Delta saved", width: 104, align: "right", cell: (each) => formatShare(savedShare(each)), order: savedShare },
    { key: "speed", title: "Speed", width: 104, align: "right", cell: (each) => formatSpeed(each.bytes_per_s), order: (each) => each.bytes_per_s },
    { key: "phases", title: "Phases", width: 180, grow: 2, cell: (each) => <PhaseBar phases={each.phases} longest={longest} />, order: (each) => (each.phases ? totalPhases(each.phases) : null) },
    { key: "parts", title: "Parts", width: 80, align: "right", cell: (each) => (each.expected_parts === null ? NONE : `${formatCount(each.parts)}/${formatCount(each.expected_parts)}`), order: (each) => each.parts },
    { key: "ranks", title: "Ranks", width: 112, cell: (each) => (each.diverged === null ? NONE : each.diverged ? <span title={each.divergence}><Badge tone="bad">Differ</Badge></span> : <Badge tone="ok">Agree</Badge>), order: (each) => (each.diverged === null ? null : Number(each.diverged)) },
  ];
}

function StateCell({ each }: { each: Checkpoint }) {
  return (
    <span title={each.reason || undefined}>
      <StateBadge state={each.state} />
      {each.reason ? (
        <span className="muted">
          {" "}
          <Name>{each.reason}</Name>
        </span>
      ) : null}
    </span>
  );
}

function PhaseBar({ phases, longest }: { phases: SavePhases | null; longest: number }) {
  if (!phases) return NONE;
  const total = totalPhases(phases);
  const words = PHASES.map(({ key, label }) => `${label.toLowerCase()} ${formatDuration(phases[key])}`).join(", ");
  return (
    <span className="phase" title={words}>
      <span className="phase-room" aria-hidden="true">
        <span className="phase-bar" style={{ width: `${longest > 0 ? Math.max(4, (total / longest) * 100) : 0}%` }}>
          {PHASES.map(({ key, colour }) => (phases[key] > 0 ? <span key={key} style={{ flexGrow: phases[key] / total, background: `var(${colour})` }} /> : null))}
        </span>
      </span>
      <span className="hidden-text">{words}</span>
      <span className="phase-total muted">{formatDuration(total)}</span>
    </span>
  );
}
