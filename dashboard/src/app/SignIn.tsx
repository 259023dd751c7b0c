import { useEffect, useId, useRef, useState } from "react";
import type { Session } from "../api/access";
import { signIn } from "../api/fetch";
import { useTitle } from "../lib/theme";
import { Brand } from "./Brand";
import { ThemeSwitch } from "./ThemeSwitch";

export function SignIn({ notice }: { notice: Session["notice"] }) {
  const [said, setSaid] = useState(notice);
  const [attempt, setAttempt] = useState(0);
  const [isChecking, setIsChecking] = useState(false);
  const field = useRef<HTMLInputElement>(null);
  const id = useId();
  useTitle("Sign in · Strata");
  // The only thing to do here; after a refusal, the next token replaces the last one.
  useEffect(() => {
    field.current?.focus();
    field.current?.select();
  }, [attempt]);

  async function submit(): Promise<void> {
    if (isChecking) return;
    setIsChecking(true);
    const problem = await signIn(field.current?.value ?? "");
    setIsChecking(false);
    if (problem === null) return;
    setSaid({ text: problem, isProblem: true });
    setAttempt(attempt + 1);
  }

  return (
    <div className="sign-in">
      <main className="sign-in-box panel">
        <Brand />
        <h1>This coordinator asks for a token</h1>
        <p id={`${id}-hint`} className="sign-in-hint">
          An administrator makes one with <code className="nowrap">strata token create --role viewer</code>.
        </p>
        <form
          onSubmit={(event) => {
            // Never sent by the browser itself, which would put the token into an address.
            event.preventDefault();
            void submit();
          }}
        >
          <label htmlFor={`${id}-token`}>Token</label>
          <input ref={field} id={`${id}-token`} type="password" autoComplete="off" spellCheck={false} aria-invalid={said?.isProblem ?? false} aria-describedby={said ? `${id}-hint ${id}-said` : `${id}-hint`} />
          {/* A new element each time, so that the same words are heard again. */}
          {said ? (
            <p key={attempt} id={`${id}-said`} className={said.isProblem ? "notice notice-bad" : "notice"} role={said.isProblem ? "alert" : "status"}>
              {said.text}
            </p>
          ) : null}
          <button type="submit" className="button sign-in-button" aria-busy={isChecking}>
            {isChecking ? "Checking…" : "Sign in"}
          </button>
        </form>
        <p className="muted sign-in-note">The token is kept in this tab until you sign out or close it.</p>
      </main>
      <ThemeSwitch />
    </div>
  );
}
