// Server-Sent Events by fetch: the browser's own EventSource cannot send a token in a header.
import { request, type Query } from "./fetch";

export interface StreamListener {
  onOpen: () => void;
  onMessage: (kind: string, data: string) => void;
  /** Called once: the stream was refused, or broke, or ended. Not called for a stream that was closed here. */
  onEnd: () => void;
}

export interface Message {
  kind: string;
  data: string;
}

// Far more than any event has. What is longer is not from a coordinator.
const MAX_CHARS = 1 << 20;

/** Text in pieces as they arrive, messages out as they are complete. */
export class MessageReader {
  private rest = "";
  private kind = "";
  private data: string[] = [];

  read(text: string): Message[] {
    const lines = (this.rest + text).split("\n");
    this.rest = lines.pop() ?? "";
    const messages: Message[] = [];
    for (const each of lines) {
      const line = each.endsWith("\r") ? each.slice(0, -1) : each;
      if (line !== "") {
        this.take(line);
        continue;
      }
      if (this.data.length > 0) messages.push({ kind: this.kind || "message", data: this.data.join("\n") });
      this.kind = "";
      this.data = [];
    }
    if (this.rest.length + this.data.reduce((sum, line) => sum + line.length, 0) > MAX_CHARS) throw new RangeError("a message of the stream is too long");
    return messages;
  }

  private take(line: string): void {
    // A line that begins with a colon has an empty name: it is a comment, as sign of life.
    const [name = ""] = line.split(":", 1);
    const value = line.slice(name.length + 1).replace(/^ /, "");
    if (name === "event") this.kind = value;
    if (name === "data") this.data.push(value);
  }
}

/** Follow a stream until it ends, or until the function that this returns is called. */
export function follow(path: string, query: Query, listener: StreamListener): () => void {
  const closing = new AbortController();
  void receive(path, query, listener, closing.signal).finally(() => {
    if (closing.signal.aborted) return;
    closing.abort();
    listener.onEnd();
  });
  return () => closing.abort();
}

async function receive(path: string, query: Query, listener: StreamListener, signal: AbortSignal): Promise<void> {
  const response = await request(path, query, "text/event-stream", signal).catch(() => null);
  if (!response?.ok || response.body === null || signal.aborted) return;
  listener.onOpen();
  const body = response.body.getReader();
  const decoder = new TextDecoder();
  const reader = new MessageReader();
  const isClosed = (): boolean => signal.aborted;
  for (;;) {
    const piece = await body.read().catch(() => null);
    if (piece === null || piece.done) return;
    for (const message of reader.read(decoder.decode(piece.value, { stream: true }))) {
      // Whoever closed it in between wants to hear no more.
      if (isClosed()) return;
      listener.onMessage(message.kind, message.data);
    }
  }
}
