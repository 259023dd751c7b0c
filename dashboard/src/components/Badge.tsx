import type { ReactNode } from "react";
import { lookOf, type Tone } from "../lib/states";

// Shapes differ as the colours do: a state can be told without seeing colour.
const SHAPES: Readonly<Record<Tone, string>> = {
  ok: "M6 1a5 5 0 1 0 0 10A5 5 0 0 0 6 1z",
  busy: "M1.500 1.500h9v9h-9z",
  wait: "M6 1a5 5 0 1 0 0 10A5 5 0 0 0 6 1zm0 2.200a2.800 2.800 0 1 1 0 5.600a2.800 2.800 0 0 1 0-5.600z",
  warn: "M6 .8 11.600 11H.4z",
  bad: "M2.600 1 6 4.400 9.400 1 11 2.600 7.600 6 11 9.400 9.400 11 6 7.600 2.600 11 1 9.400 4.400 6 1 2.600z",
  off: "M1 4.800h10v2.400H1z",
};

export function Glyph({ tone }: { tone: Tone }) {
  return (
    <svg className={`glyph tone-${tone}`} viewBox="0 0 12 12" width="9" height="9" aria-hidden="true" focusable="false">
      <path d={SHAPES[tone]} fillRule="evenodd" />
    </svg>
  );
}

export function Badge({ tone, children }: { tone: Tone; children: ReactNode }) {
  return (
    <span className="badge">
      <Glyph tone={tone} />
      {children}
    </span>
  );
}

/** A worker's or job's state: shape, colour and word. */
export function StateBadge({ state }: { state: string }) {
  const look = lookOf(state);
  return <Badge tone={look.tone}>{look.label}</Badge>;
}
