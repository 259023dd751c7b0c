// The token that was given to this page. It is kept for this tab alone, and sent in a header, never in an address.

export interface Session {
  readonly token: string | null;
  /** Whether the page needs a token before it can go on. */
  readonly isAsked: boolean;
  /** What became of the last token, in words. */
  readonly notice: { readonly text: string; readonly isProblem: boolean } | null;
  /** Counts the sessions: what was loaded in one is not shown in the next. */
  readonly round: number;
}

const KEY = "strata.token";

export class Access {
  private session: Session;
  private readonly listeners = new Set<() => void>();
  private readonly storage: () => Storage;

  constructor(storage: () => Storage) {
    this.storage = storage;
    this.session = { token: this.load(), isAsked: false, notice: null, round: 0 };
  }

  readonly read = (): Session => this.session;

  readonly subscribe = (listener: () => void): (() => void) => {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  };

  /** The coordinator accepts this token. */
  accept(token: string): void {
    this.save(token);
    this.set({ token, isAsked: false, notice: null });
  }

  /** The coordinator refused a request with this token. The late answer to a request of an older session changes nothing. */
  refuse(token: string | null): void {
    if (this.session.isAsked || token !== this.session.token) return;
    this.save(null);
    const text = "The coordinator no longer accepts your token: it was revoked or replaced, or has expired.";
    this.set({ token: null, isAsked: true, notice: token === null ? null : { text, isProblem: true } });
  }

  signOut(): void {
    this.save(null);
    this.set({ token: null, isAsked: true, notice: { text: "You are signed out.", isProblem: false } });
  }

  private set(change: Omit<Session, "round">): void {
    this.session = { ...change, round: this.session.round + 1 };
    this.listeners.forEach((listener) => listener());
  }

  private load(): string | null {
    try {
      return this.storage().getItem(KEY);
    } catch {
      return null;
    }
  }

  private save(token: string | null): void {
    try {
      if (token === null) this.storage().removeItem(KEY);
      else this.storage().setItem(KEY, token);
    } catch {
      // Storage may be closed to this page; the token then lasts until the page is loaded again.
    }
  }
}

export const access = new Access(() => sessionStorage);
