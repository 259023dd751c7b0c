import { useVirtualizer } from "@tanstack/react-virtual";
import { useMemo, useRef, useState } from "react";
import type { EventEntry } from "../api/types";
import { EventLine } from "../components/EventLine";
import { Empty } from "../components/Panel";
import { formatCount, plural } from "../lib/format";
import { matches } from "../lib/rows";
import type { PageProps } from "./page";

export function Events({ feed, nowS, query, setQuery }: PageProps) {
  const search = query.get("search") ?? "";
  const kind = query.get("kind") ?? "";
  const onlyFailures = query.get("failures") === "1";
  // What was there when following was switched off; null while it is on.
  const [held, setHeld] = useState<readonly EventEntry[] | null>(null);
  const items = held ?? feed.items;
  const kinds = useMemo(() => [...new Set(feed.items.map((event) => event.kind))].sort(), [feed.items]);
  const shown = useMemo(
    () =>
      items
        .filter((event) => (kind === "" || event.kind === kind) && (!onlyFailures || event.is_failure) && matches(search, event.worker_id, event.kind, event.reason, event.cause))
        .reverse(),
    [items, kind, onlyFailures, search],
  );
  const behind = held === null ? 0 : feed.items.length - held.length;
  return (
    <>
      <div className="toolbar">
        <label className="field">
          <span className="hidden-text">Search events</span>
          <input type="search" placeholder="Search worker, reason, cause" value={search} onChange={(event) => setQuery("search", event.target.value)} />
        </label>
        <label className="field">
          Kind
          <select value={kind} onChange={(event) => setQuery("kind", event.target.value)}>
            <option value="">All</option>
            {kinds.map((each) => (
              <option key={each} value={each}>
                {each.replaceAll("_", " ")}
              </option>
            ))}
          </select>
        </label>
        <label className="field">
          <input type="checkbox" checked={onlyFailures} onChange={(event) => setQuery("failures", event.target.checked ? "1" : null)} />
          Failures only
        </label>
        <label className="field">
          <input type="checkbox" checked={held === null} onChange={(event) => setHeld(event.target.checked ? null : feed.items)} />
          Follow
        </label>
        <span className="toolbar-end" role="status">
          {shown.length === items.length ? plural(shown.length, "event") : `${formatCount(shown.length)} of ${plural(items.length, "event")}`}
          {behind > 0 ? `, ${formatCount(behind)} new` : ""}
        </span>
      </div>
      {feed.lost ? <p className="notice">Some events were forgotten by the coordinator before this page could read them.</p> : null}
      <EventList events={shown} nowS={nowS} empty={feed.items.length === 0 ? (feed.error ? `No events: ${feed.error}.` : "Nothing has happened yet.") : "No event matches the filter."} />
    </>
  );
}

function EventList({ events, nowS, empty }: { events: readonly EventEntry[]; nowS: number; empty: string }) {
  const box = useRef<HTMLDivElement>(null);
  // eslint-disable-next-line react-hooks/incompatible-library -- as in DataTable
  const virtual = useVirtualizer({ count: events.length, getScrollElement: () => box.current, estimateSize: () => 32, overscan: 12, getItemKey: (index) => events[index]?.position ?? index });
  return (
    <div className="table-box event-box" ref={box} tabIndex={0} role="region" aria-label="Events, newest first">
      {events.length === 0 ? (
        <div className="table-empty">
          <Empty>{empty}</Empty>
        </div>
      ) : (
        <ol style={{ height: virtual.getTotalSize(), position: "relative" }}>
          {virtual.getVirtualItems().map((item) => {
            const event = events[item.index];
            return event ? (
              <li className="event-slot" key={item.key} data-index={item.index} ref={virtual.measureElement} style={{ transform: `translateY(${item.start}px)` }}>
                <EventLine event={event} nowS={nowS} />
              </li>
            ) : null;
          })}
        </ol>
      )}
    </div>
  );
}
