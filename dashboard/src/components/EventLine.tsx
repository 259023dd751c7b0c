import type { EventEntry } from "../api/types";
import { formatAge, formatMoment } from "../lib/format";
import { eventTone } from "../lib/eventTone";
import { Glyph } from "./Badge";
import { Name } from "./Name";

/** One event: when, of whom, what, and why. */
export function EventLine({ event, nowS }: { event: EventEntry; nowS: number }) {
  return (
    <div className="event">
      <Glyph tone={eventTone(event)} />
      <time className="muted nowrap" dateTime={new Date(event.at_s * 1000).toISOString()} title={formatAge(nowS - event.at_s)}>
        {formatMoment(event.at_s, nowS)}
      </time>
      <span className="event-kind">{event.kind.replaceAll("_", " ")}</span>
      <span className="event-text">
        {event.worker_id !== null ? (
          <b>
            <Name>{event.worker_id}</Name>{" "}
          </b>
        ) : null}
        <Name>{event.reason}</Name>
      </span>
    </div>
  );
}
