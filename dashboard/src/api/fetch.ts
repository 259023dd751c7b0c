// One way to ask the coordinator. Addresses are relative to the page, so they work behind any prefix and any proxy.
import { access } from "./access";

const TIMEOUT_MS = 10_000;

export type Query = Readonly<Record<string, string | number | null | undefined>>;

export class ApiError extends Error {
  readonly status: number | null;

  constructor(message: string, status: number | null) {
    super(message);
    this.name = "ApiError";
    this.status = status;
  }
}

// How far the coordinator's clock is ahead of this machine's, in seconds: it says what time it is with each answer.
let clockOffsetS = 0;

/** The time by the coordinator's clock. Ages are reckoned by it alone, since clocks of two machines differ. */
export function coordinatorNowS(): number {
  return Date.now() / 1000 + clockOffsetS;
}

/** Send a request with the token of the session. An answer that wants another token ends the session. */
export async function request(path: string, query: Query, accept: string, signal: AbortSignal, token = access.read().token): Promise<Response> {
  const headers: Record<string, string> = { Accept: accept };
  if (token !== null) headers.Authorization = `Bearer ${token}`;
  // "no-cache" asks each time, with the ETag of what is known: an answer that has not changed costs one header.
  const response = await fetch(addressOf(path, query), { cache: "no-cache", headers, signal });
  // A proxy that wants a password also answers 401, and no token would help.
  if (response.status === 401 && /\bbearer\b/i.test(response.headers.get("WWW-Authenticate") ?? "")) access.refuse(token);
  return response;
}

export async function ask<Answer>(path: string, query: Query = {}, signal?: AbortSignal, token?: string): Promise<Answer> {
  const limit = AbortSignal.timeout(TIMEOUT_MS);
  let response: Response;
  try {
    response = await request(path, query, "application/json", signal ? AbortSignal.any([signal, limit]) : limit, token);
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ApiError(limit.aborted ? `no answer within ${TIMEOUT_MS / 1000} s` : "the coordinator cannot be reached", null);
  }
  const there = Number(response.headers.get("X-Strata-Time"));
  if (there > 0) clockOffsetS = there - Date.now() / 1000;
  if (!response.ok) throw new ApiError(await readProblem(response), response.status);
  return (await response.json()) as Answer;
}

/** Begin a session with a token; return what is wrong with it in words, or null if the coordinator accepts it. */
export async function signIn(given: string): Promise<string | null> {
  const token = given.trim();
  if (token === "") return "Enter a token.";
  // Anything else cannot be sent in a header.
  if (!/^[!-~]+$/.test(token)) return "This is no token: a token has no spaces and only ASCII characters.";
  try {
    await ask("jobs", { limit: 1 }, undefined, token);
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    if (error.status === 401) return "The coordinator refuses this token: it is not known, was revoked, or has expired.";
    return `The token could not be checked: ${error.message}.`;
  }
  access.accept(token);
  return null;
}

export function addressOf(path: string, query: Query): string {
  const words = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) if (value !== null && value !== undefined && value !== "") words.set(name, String(value));
  const text = words.toString();
  return `./api/${path}${text ? `?${text}` : ""}`;
}

async function readProblem(response: Response): Promise<string> {
  try {
    const body = (await response.json()) as { detail?: unknown };
    if (typeof body.detail === "string") return body.detail;
  } catch {
    // Whatever stands between this page and the coordinator need not speak JSON.
  }
  return `the coordinator answered with status ${response.status}`;
}
