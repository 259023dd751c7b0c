import { useEffect, useRef } from "react";
import type { Dashboard } from "../api/types";
import { PageLink } from "../components/PageLink";
import { formatCount, plural } from "../lib/format";
import { PAGES, TITLES, type PageName } from "../lib/route";
import { Brand } from "./Brand";
import { SignOut } from "./SignOut";
import { ThemeSwitch } from "./ThemeSwitch";

interface Count {
  text: string;
  isBad: boolean;
  /** The same for who hears it. */
  label: string;
}

export function Side({ page, query, dash }: { page: PageName; query: URLSearchParams; dash: Dashboard | null }) {
  const nav = useRef<HTMLElement>(null);
  // On a phone the list is wider than the screen.
  useEffect(() => {
    // In braces: newer browsers return a promise, which React would take for the effect's end.
    nav.current?.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
  }, [page]);
  return (
    <div className="side">
      <Brand />
      <nav className="nav" aria-label="Pages" ref={nav}>
        {PAGES.map((name) => {
          const count = dash ? countFor(name, dash) : null;
          return (
            <PageLink key={name} page={name} query={query} isCurrent={name === page}>
              {TITLES[name]}
              {count ? (
                <span className={count.isBad ? "nav-count is-bad" : "nav-count"}>
                  <span aria-hidden="true">{count.text}</span>
                  <span className="hidden-text">{count.label}</span>
                </span>
              ) : null}
            </PageLink>
          );
        })}
      </nav>
      <div className="side-foot">
        <ThemeSwitch />
        <SignOut />
        {dash ? (
          <span>
            Coordinator {dash.coordinator.version}
            <br />
            {plural(dash.coordinator.channels, "connection")}
          </span>
        ) : null}
      </div>
    </div>
  );
}

function countFor(page: PageName, dash: Dashboard): Count | null {
  if (page === "workers") {
    const failed = dash.workers.filter((worker) => worker.state.toUpperCase() === "FAILED").length;
    const present = dash.workers.filter((worker) => worker.is_present).length;
    return failed > 0 ? { text: `${formatCount(failed)} failed`, isBad: true, label: `, ${failed} failed` } : { text: formatCount(present), isBad: false, label: `, ${present} present` };
  }
  if (page === "barriers" && dash.barriers && dash.barriers.open.length > 0) {
    return { text: `${dash.barriers.open.length} open`, isBad: false, label: `, ${dash.barriers.open.length} open` };
  }
  return null;
}
