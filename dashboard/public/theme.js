// Loaded before the first paint, so that a dark page never flashes white. A file of its own: the page allows no inline script.
try {
  const theme = localStorage.getItem("strata.theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch {
  // Storage may be closed to this page; the system's theme is used then.
}
