import { useId, type ReactNode } from "react";
import { NONE } from "../lib/format";

interface PanelProps {
  title: string;
  /** What the title leaves open: the unit, the window, where the numbers come from. */
  note?: ReactNode;
  actions?: ReactNode;
  className?: string;
  children: ReactNode;
}

export function Panel({ title, note, actions, className = "", children }: PanelProps) {
  const id = useId();
  return (
    <section className={`panel ${className}`} aria-labelledby={id}>
      <header className="panel-head">
        <h2 id={id}>{title}</h2>
        {note ? <p className="panel-note">{note}</p> : null}
        {actions ? <div className="panel-actions">{actions}</div> : null}
      </header>
      {children}
    </section>
  );
}

/** Nothing to show, and why: never a zero that was not measured. */
export function Empty({ children }: { children: ReactNode }) {
  return <p className="empty">{children}</p>;
}

export function Loading({ what }: { what: string }) {
  return (
    <p className="empty" role="status">
      Asking the coordinator for {what}…
    </p>
  );
}

interface StatProps {
  label: string;
  value: string;
  unit?: string;
  note?: ReactNode;
  tone?: "bad" | "warn" | undefined;
}

/** One number with its unit, inside a StatRow. */
export function Stat({ label, value, unit, note, tone }: StatProps) {
  return (
    <div className={`stat ${tone ? `stat-${tone}` : ""}`}>
      <dt>{label}</dt>
      <dd className="stat-value">
        {value}
        {unit && value !== NONE ? <span className="stat-unit"> {unit}</span> : null}
      </dd>
      {note ? <dd className="stat-note">{note}</dd> : null}
    </div>
  );
}

export function StatRow({ children, label }: { children: ReactNode; label: string }) {
  return (
    <dl className="stats" aria-label={label}>
      {children}
    </dl>
  );
}
