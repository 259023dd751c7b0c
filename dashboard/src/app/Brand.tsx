export function Brand() {
  return (
    <div className="brand">
      <svg viewBox="0 0 24 24" width="22" height="22" aria-hidden="true" focusable="false">
        <path d="M3 18h18M3 12h13M3 6h8" stroke="var(--accent)" strokeWidth="3.2" strokeLinecap="round" />
      </svg>
      <span className="brand-word">Strata</span>
    </div>
  );
}
