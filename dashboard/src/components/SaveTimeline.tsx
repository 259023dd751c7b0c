import { useMemo, useState } from "react";
import type { Checkpoint } from "../api/types";
import { formatBytes, formatCount, formatMoment, formatShare, isNumber } from "../lib/format";
import { savedShare } from "../lib/saves";
import { lookOf } from "../lib/states";

const HEIGHT = 120;

/** Checkpoints in their order as bars: written bytes solid, the full state as an outline, states as colour and letter. */
export function SaveTimeline({ checkpoints, nowS }: { checkpoints: readonly Checkpoint[]; nowS: number }) {
  const [at, setAt] = useState<number | null>(null);
  const ordered = useMemo(() => [...checkpoints].sort((a, b) => a.step - b.step), [checkpoints]);
  const most = ordered.reduce((high, each) => Math.max(high, each.full_bytes ?? 0, each.size_bytes ?? 0), 0);
  const chosen = at === null ? ordered.at(-1) : ordered[at];
  return (
    <div>
      <ol className="saves" aria-label="Checkpoints by step, oldest first">
        {ordered.map((each, index) => {
          const look = lookOf(each.state);
          const full = most > 0 ? ((each.full_bytes ?? each.size_bytes ?? 0) / most) * HEIGHT : 0;
          const size = most > 0 ? ((each.size_bytes ?? 0) / most) * HEIGHT : 0;
          return (
            <li key={`${each.step}/${each.state}`}>
              <button type="button" className="save" style={{ height: HEIGHT + 14 }} onPointerEnter={() => setAt(index)} onFocus={() => setAt(index)} onPointerLeave={() => setAt(null)} onBlur={() => setAt(null)} aria-label={describe(each, nowS)}>
                {isNumber(each.size_bytes) ? (
                  <>
                    <span className="save-full" style={{ height: Math.max(3, full) }} />
                    <span className={`save-size fill-${look.tone}`} style={{ height: Math.max(3, size) }} />
                  </>
                ) : (
                  <span className="save-full save-unknown">?</span>
                )}
                {each.diverged ? (
                  <span className="save-mark" aria-hidden="true">
                    ≠
                  </span>
                ) : null}
              </button>
            </li>
          );
        })}
      </ol>
      <p className="panel-note save-readout">{chosen ? describe(chosen, nowS) : ""}</p>
    </div>
  );
}

function describe(each: Checkpoint, nowS: number): string {
  const saved = savedShare(each);
  return [
    `Step ${formatCount(each.step)}: ${lookOf(each.state).label.toLowerCase()}`,
    each.committed_s !== null ? formatMoment(each.committed_s, nowS) : null,
    isNumber(each.size_bytes) ? `${formatBytes(each.size_bytes)} written` : "size not known",
    saved !== null ? `${formatShare(saved)} saved by delta` : null,
    each.diverged ? each.divergence || "ranks differ" : null,
    each.reason || null,
  ]
    .filter((text) => text !== null)
    .join(", ");
}
