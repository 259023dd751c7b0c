import { useSyncExternalStore } from "react";
import { access } from "../api/access";

/** Forgets the token; where there is none, there is nothing to forget. */
export function SignOut() {
  const { token } = useSyncExternalStore(access.subscribe, access.read);
  if (token === null) return null;
  return (
    <button type="button" className="button sign-out" onClick={() => access.signOut()}>
      Sign out
    </button>
  );
}
