import { formatDuration, formatShare } from "../lib/format";

export interface Share {
  key: string;
  label: string;
  seconds: number;
  /** A CSS variable of the design system, such as --c1. */
  colour: string;
  hint?: string;
}

// Less than this is what adding up floating-point numbers leaves over.
const NOTHING_S = 0.0005;

/** Parts of a whole as one bar, with the table that says the same in words and numbers. */
export function ShareBar({ shares: given, label }: { shares: readonly Share[]; label: string }) {
  const shares = given.map((share) => (share.seconds < NOTHING_S ? { ...share, seconds: 0 } : share));
  const total = shares.reduce((sum, share) => sum + share.seconds, 0);
  return (
    <div className="share">
      <div className="share-bar" aria-hidden="true">
        {shares.map((share) =>
          share.seconds > 0 ? (
            <span key={share.key} style={{ flexGrow: share.seconds / total, background: `var(${share.colour})` }} title={`${share.label}: ${formatDuration(share.seconds)}`} />
          ) : null,
        )}
      </div>
      <table className="plain-table">
        <caption className="hidden-text">{label}</caption>
        <thead className="hidden-text">
          <tr>
            <th scope="col">Cause</th>
            <th scope="col">Time</th>
            <th scope="col">Share</th>
          </tr>
        </thead>
        <tbody>
          {shares.map((share) => (
            <tr key={share.key}>
              <th scope="row">
                <span className="swatch" style={{ background: `var(${share.colour})` }} aria-hidden="true" />
                {share.label}
                {share.hint ? <span className="muted share-hint"> {share.hint}</span> : null}
              </th>
              <td className="right nowrap">{formatDuration(share.seconds)}</td>
              <td className="right nowrap share-percent">{formatShare(total > 0 ? share.seconds / total : null)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
