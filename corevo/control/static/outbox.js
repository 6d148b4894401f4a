// Messages on their way to a gateway. Each has a key, so that sending one twice is sending it once; a reload keeps them.

import { tab } from "./dom.js";

const KEPT_CHARACTERS = 1_000_000;

export class Outbox {
  /** entry: { key, text, thread_id, agent, on_busy, fresh } — `fresh` names a conversation that has no id yet. */
  constructor() {
    this.entries = new Map();
    try {
      for (const entry of JSON.parse(tab.get("outbox") ?? "[]")) this.entries.set(entry.key, entry);
    } catch {
      tab.set("outbox", null);
    }
  }

  add(entry) {
    const key = Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
    const added = { key, problem: null, ...entry };
    this.entries.set(key, added);
    this.keep();
    return added;
  }

  drop(key) {
    const entry = this.entries.get(key);
    this.entries.delete(key);
    this.keep();
    return entry;
  }

  /** The first message of a new conversation was admitted: those behind it know now where they belong. */
  named(fresh, threadId) {
    for (const entry of this.entries.values()) {
      if (entry.fresh === fresh) Object.assign(entry, { thread_id: threadId, fresh: null });
    }
    this.keep();
  }

  /** What may be sent now, in order. */
  ready() {
    const begun = new Set();
    return [...this.entries.values()].filter((entry) => {
      if (entry.problem !== null) return false;
      if (entry.fresh === null) return true;
      if (begun.has(entry.fresh)) return false;
      begun.add(entry.fresh);
      return true;
    });
  }

  of(threadId, fresh) {
    return [...this.entries.values()].filter((e) => (threadId === null ? e.fresh === fresh : e.thread_id === threadId));
  }

  keep() {
    const text = JSON.stringify([...this.entries.values()]);
    tab.set("outbox", this.entries.size && text.length < KEPT_CHARACTERS ? text : null);
  }
}

export function frameOf(entry) {
  const frame = { op: "send", ref: entry.key, text: entry.text, on_busy: entry.on_busy, idempotency_key: entry.key };
  if (entry.thread_id) frame.thread_id = entry.thread_id;
  if (entry.agent) frame.agent = entry.agent;
  return frame;
}
