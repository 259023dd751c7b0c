import { QueryClientProvider } from "@tanstack/react-query";
import { useState, useSyncExternalStore } from "react";
import { access } from "../api/access";
import { makeQueryClient } from "../api/queries";
import { App } from "./App";
import { SignIn } from "./SignIn";

/** The page, or the form where the coordinator wants a token first. Behind the form nothing asks, and nothing is shown. */
export function Entrance() {
  const session = useSyncExternalStore(access.subscribe, access.read);
  return session.isAsked ? <SignIn notice={session.notice} /> : <LoadedApp key={session.round} />;
}

function LoadedApp() {
  const [client] = useState(makeQueryClient);
  return (
    <QueryClientProvider client={client}>
      <App />
    </QueryClientProvider>
  );
}
