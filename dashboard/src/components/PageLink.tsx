import type { MouseEvent, ReactNode } from "react";
import { go, linkTo, type PageName } from "../lib/route";

interface PageLinkProps {
  page: PageName;
  query: URLSearchParams;
  isCurrent?: boolean;
  children: ReactNode;
}

/** A link to a page of the same job: followed in place, and an ordinary link for every other click. */
export function PageLink({ page, query, isCurrent = false, children }: PageLinkProps) {
  const href = linkTo(page, query);
  const follow = (event: MouseEvent) => {
    if (event.metaKey || event.ctrlKey || event.shiftKey || event.button !== 0) return;
    event.preventDefault();
    go(href);
    scrollTo(0, 0);
  };
  return (
    <a href={href} aria-current={isCurrent ? "page" : undefined} onClick={follow}>
      {children}
    </a>
  );
}
