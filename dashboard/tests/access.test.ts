import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import { access, Access } from "../src/api/access";
import { ApiError, ask, signIn } from "../src/api/fetch";
import { follow, MessageReader } from "../src/api/stream";

const BEARER = { "WWW-Authenticate": 'Bearer realm="strata"' };
const refusal = (headers: Record<string, string> = BEARER): Response => Response.json({ detail: "it brought no token" }, { status: 401, headers });

interface Sent {
  address: string;
  authorization: string | null;
}

/** Answer each request with the next of these; the last one answers all that follow. */
function answerWith(...answers: (() => Response | Promise<Response>)[]): Sent[] {
  const sent: Sent[] = [];
  vi.stubGlobal("fetch", (address: string, options: RequestInit) => {
    sent.push({ address, authorization: new Headers(options.headers).get("Authorization") });
    const next = answers.length > 1 ? answers.shift() : answers[0];
    return Promise.resolve().then(() => next?.());
  });
  return sent;
}

function makeStorage(items: Record<string, string> = {}): Storage {
  const kept = new Map(Object.entries(items));
  return {
    getItem: (key: string) => kept.get(key) ?? null,
    setItem: (key: string, value: string) => void kept.set(key, value),
    removeItem: (key: string) => void kept.delete(key),
  } as Storage;
}

beforeEach(() => {
  vi.stubGlobal("sessionStorage", makeStorage());
  access.accept("good-token");
});
afterEach(() => void vi.unstubAllGlobals());

describe("the token of the session", () => {
  test("it is in a header of each request, and in no address", async () => {
    const sent = answerWith(() => Response.json({}));
    await ask("jobs", { job: "llm" });
    follow("events", { after: "1" }, { onOpen: vi.fn(), onMessage: vi.fn(), onEnd: vi.fn() });
    expect(sent).toEqual([
      { address: "./api/jobs?job=llm", authorization: "Bearer good-token" },
      { address: "./api/events?after=1", authorization: "Bearer good-token" },
    ]);
  });

  test("a page without a token asks for one when the coordinator does, and blames nobody", () => {
    const fresh = new Access(() => makeStorage());
    expect(fresh.read()).toMatchObject({ token: null, isAsked: false });
    fresh.refuse(null);
    expect(fresh.read()).toMatchObject({ isAsked: true, notice: null });
  });

  test("a page that is loaded again still has it, and one whose storage is closed works without", () => {
    expect(new Access(() => makeStorage({ "strata.token": "kept" })).read().token).toBe("kept");
    const closed = new Access(() => {
      throw new DOMException("denied", "SecurityError");
    });
    closed.accept("in-memory");
    expect(closed.read().token).toBe("in-memory");
  });

  test("a token that is refused while the page is open is forgotten, and that is said", async () => {
    answerWith(() => refusal());
    await expect(ask("jobs")).rejects.toMatchObject({ status: 401 });
    expect(access.read()).toMatchObject({ token: null, isAsked: true, notice: { isProblem: true } });
    expect(access.read().notice?.text).toContain("no longer accepts your token");
    expect(sessionStorage.getItem("strata.token")).toBeNull();
  });

  test("a refusal that comes late does not end the next session", async () => {
    answerWith(() => refusal());
    const late = ask("jobs");
    access.accept("next-token");
    await expect(late).rejects.toBeInstanceOf(ApiError);
    expect(access.read()).toMatchObject({ token: "next-token", isAsked: false });
  });

  test("a proxy that wants a password is an error, and not asked about with a token", async () => {
    answerWith(() => refusal({ "WWW-Authenticate": "Basic" }));
    await expect(ask("jobs")).rejects.toMatchObject({ status: 401 });
    expect(access.read()).toMatchObject({ token: "good-token", isAsked: false });
  });

  test("signing out forgets it, and begins a new round, so that nothing loaded with it is shown", () => {
    const { round } = access.read();
    access.signOut();
    expect(access.read()).toMatchObject({ token: null, isAsked: true, notice: { text: "You are signed out.", isProblem: false } });
    expect(access.read().round).not.toBe(round);
    expect(sessionStorage.getItem("strata.token")).toBeNull();
  });
});

describe("signing in", () => {
  beforeEach(() => access.signOut());

  test("a token that the coordinator accepts begins a session", async () => {
    const sent = answerWith(() => Response.json({ items: [] }));
    expect(await signIn("  new-token\n")).toBeNull();
    expect(sent.map((each) => each.authorization)).toEqual(["Bearer new-token"]);
    expect(access.read()).toMatchObject({ token: "new-token", isAsked: false, notice: null });
    expect(sessionStorage.getItem("strata.token")).toBe("new-token");
  });

  test.each([
    ["wrong", () => refusal(), "refuses this token"],
    ["good", () => Response.json({ detail: "it is a standby" }, { status: 503 }), "could not be checked: it is a standby"],
    ["good", () => Promise.reject(new TypeError("failed")), "could not be checked: the coordinator cannot be reached"],
  ])("%s: what went wrong is said, and nothing is kept", async (token, answer, words) => {
    answerWith(answer);
    expect(await signIn(token)).toContain(words);
    expect(access.read()).toMatchObject({ token: null, isAsked: true });
    expect(sessionStorage.getItem("strata.token")).toBeNull();
  });

  test.each(["", "   ", "two words", "a\nb", "tökén"])("%j is never sent", async (token) => {
    const sent = answerWith(() => Response.json({}));
    expect(await signIn(token)).not.toBeNull();
    expect(sent).toEqual([]);
  });
});

describe("a stream of events by fetch", () => {
  test("messages are read whole from pieces of any size", () => {
    const text = 'retry: 1000\n\nid: 7\nevent: event\ndata: {"a": "b: c"}\n\n: nothing happened\n\nevent: changed\r\ndata: 1\r\ndata:2\r\n\r\n';
    const expected = [
      { kind: "event", data: '{"a": "b: c"}' },
      { kind: "changed", data: "1\n2" },
    ];
    for (let size = 1; size <= text.length; size += 1) {
      const reader = new MessageReader();
      const pieces = Array.from({ length: Math.ceil(text.length / size) }, (_, index) => text.slice(index * size, (index + 1) * size));
      expect(pieces.flatMap((piece) => reader.read(piece))).toEqual(expected);
    }
  });

  test("a message without end is not gathered for ever", () => {
    const reader = new MessageReader();
    expect(() => reader.read("x".repeat((1 << 20) + 1))).toThrow(RangeError);
  });

  test("it says when it is open, what it hears, and once that it ended", async () => {
    const heard: string[] = [];
    // The sign of two bytes is cut in the middle.
    const bytes = new TextEncoder().encode("event: event\ndata: é\n\n");
    const body = new ReadableStream<Uint8Array>({
      start: (controller) => {
        controller.enqueue(bytes.slice(0, -3));
        controller.enqueue(bytes.slice(-3));
        controller.close();
      },
    });
    answerWith(() => new Response(body as BodyInit));
    await new Promise<void>((resolve) => {
      follow("events", {}, { onOpen: () => heard.push("open"), onMessage: (kind, data) => heard.push(`${kind} ${data}`), onEnd: () => resolve(void heard.push("end")) });
    });
    expect(heard).toEqual(["open", "event é", "end"]);
  });

  test("one that is refused ends without having been open, and asks for a token", async () => {
    answerWith(() => refusal());
    const onOpen = vi.fn();
    await new Promise<void>((resolve) => void follow("events", {}, { onOpen, onMessage: vi.fn(), onEnd: resolve }));
    expect(onOpen).not.toHaveBeenCalled();
    expect(access.read().isAsked).toBe(true);
  });

  test("one that was closed says nothing more", async () => {
    const listener = { onOpen: vi.fn(), onMessage: vi.fn(), onEnd: vi.fn() };
    answerWith(() => new Response("event: event\ndata: 1\n\n"));
    const close = follow("events", {}, listener);
    close();
    await new Promise((resolve) => setTimeout(resolve));
    expect([listener.onOpen, listener.onMessage, listener.onEnd].map((each) => each.mock.calls.length)).toEqual([0, 0, 0]);
  });
});
