import { useEffect, useSyncExternalStore } from "react";

export type Theme = "system" | "light" | "dark";

const KEY = "strata.theme";
const listeners = new Set<() => void>();

export function readTheme(): Theme {
  const chosen = document.documentElement.dataset.theme;
  return chosen === "light" || chosen === "dark" ? chosen : "system";
}

export function chooseTheme(theme: Theme): void {
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  try {
    if (theme === "system") localStorage.removeItem(KEY);
    else localStorage.setItem(KEY, theme);
  } catch {
    // Storage may be closed to this page; the choice then lasts as long as the page does.
  }
  listeners.forEach((listener) => listener());
}

function subscribe(listener: () => void): () => void {
  const system = matchMedia("(prefers-color-scheme: dark)");
  listeners.add(listener);
  system.addEventListener("change", listener);
  return () => {
    listeners.delete(listener);
    system.removeEventListener("change", listener);
  };
}

function isDark(): boolean {
  const theme = readTheme();
  return theme === "system" ? matchMedia("(prefers-color-scheme: dark)").matches : theme === "dark";
}

export function useTheme(): { theme: Theme; isDark: boolean } {
  const dark = useSyncExternalStore(subscribe, isDark);
  const theme = useSyncExternalStore(subscribe, readTheme);
  return { theme, isDark: dark };
}

/** The value of a design token, for what is drawn on a canvas. */
export function readToken(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

export function useTitle(title: string): void {
  useEffect(() => {
    document.title = title;
  }, [title]);
}
