// What people say to a run that goes on: sentences added to it, and answers to its questions.

import { $, announce, h, setText, tab } from "./dom.js";
import { t } from "./words.js";

const KEPT = 50;
/** What the API says of a command that no run has taken, and never will. */
export const NOT_TAKEN = new Set(["returned", "unknown", "already_finished"]);

const MARKS = { added: "input.added", taken: "input.taken", unknown: "input.unknown" };

/** The sentences of this tab; a reload keeps them, so that one that was not taken is offered, and only once. */
export class Added {
  /** entry: { command_id, job_id, thread_id, text, state } — state: added, taken, or one of NOT_TAKEN. */
  constructor() {
    this.entries = new Map();
    try {
      for (const entry of JSON.parse(tab.get("added") ?? "[]")) this.entries.set(entry.command_id, entry);
    } catch {
      tab.set("added", null);
    }
  }

  add(entry) {
    if (this.entries.has(entry.command_id)) return;
    this.entries.set(entry.command_id, entry);
    for (const old of this.entries.values()) {
      if (this.entries.size <= KEPT) break;
      if (old.state === "taken") this.entries.delete(old.command_id);
    }
    this.keep();
  }

  of(threadId) {
    return [...this.entries.values()].filter((entry) => entry.thread_id === threadId);
  }

  become(entry, state) {
    entry.state = state;
    this.keep();
  }

  /** Whether it was there: only who takes it out may send it. */
  drop(entry) {
    const there = this.entries.delete(entry.command_id);
    this.keep();
    return there;
  }

  keep() {
    tab.set("added", this.entries.size ? JSON.stringify([...this.entries.values()]) : null);
  }
}

/** An added sentence in the page: what it says, how it stands, and the offer to send it when it was not taken. */
export class Sentence {
  constructor(text) {
    this.text = text;
    this.command = null;
    this.message = null;
    this.acts = null; // send(), discard()
    this.state = null;
    this.mark = h("div", {});
    this.element = h("article", { class: "message user added", "aria-label": t("message.you") }, h("div", { class: "text" }, text), this.mark);
  }

  /** Whether it is this text; events carry only the beginning of a long one. */
  says(text) {
    const [one, other] = this.text.length < text.length ? [this.text, text] : [text, this.text];
    return one === other || (one.endsWith("…") && other.startsWith(one.slice(0, -1)));
  }

  /** What was taken stays so. */
  show(state) {
    if (state === this.state || this.state === "taken") return;
    const watched = this.state !== null || state !== "taken";
    this.state = state;
    const offered = NOT_TAKEN.has(state);
    const words = t(MARKS[state] ?? "input.returned");
    this.mark.className = offered ? "ending" : "mark";
    this.mark.replaceChildren(h("span", {}, words));
    if (offered) {
      const act = (does) => () => {
        does();
        $("text").focus();
      };
      this.mark.append(
        h("button", { type: "button", class: "button", onclick: act(() => this.acts.send()) }, t("input.send")),
        h("button", { type: "button", class: "button", onclick: act(() => this.acts.discard()) }, t("send.discard")),
      );
    }
    if (watched) announce(words);
  }
}

/** A question of a run: a button for each choice, or a field to write in. */
export class QuestionForm {
  /** onAnswer(text) sends it; false when it could not be sent. */
  constructor({ question_id, question, choices }, onAnswer) {
    this.onAnswer = onAnswer;
    this.sent = false; // and nothing was heard of it yet
    const id = `question-${question_id}`;
    this.note = h("p", { class: "mark", hidden: true });
    const words = h(choices?.length ? "p" : "label", { class: "asked", id, for: choices?.length ? null : `${id}-field` }, question);
    if (choices?.length) {
      this.controls = choices.map((choice) => h("button", { type: "button", class: "button", onclick: () => this.answer(choice) }, choice));
    } else {
      this.field = h("textarea", { id: `${id}-field`, rows: "1" });
      this.field.addEventListener("keydown", (key) => {
        if (key.key !== "Enter" || key.shiftKey || key.altKey || key.isComposing || key.keyCode === 229) return;
        key.preventDefault();
        this.answer(this.field.value);
      });
      this.controls = [this.field, h("button", { type: "submit", class: "button primary" }, t("input.answer"))];
    }
    const given = h("div", { class: "given" }, ...this.controls);
    this.element = h("form", { class: "question", "aria-labelledby": id, novalidate: true }, words, given, this.note);
    this.element.addEventListener("submit", (submit) => {
      submit.preventDefault();
      if (this.field) this.answer(this.field.value);
    });
    announce(question);
  }

  answer(text) {
    if (this.sent || this.controls[0].getAttribute("aria-disabled") || text.trim() === "") return;
    if (this.onAnswer(text)) {
      this.sent = true;
      this.lock(true, t("send.sending"));
    } else {
      this.lock(false, t("refused.unreachable"));
    }
  }

  /** Locked it keeps the focus, and does nothing. */
  lock(locked, words) {
    for (const control of this.controls) {
      if (locked) control.setAttribute("aria-disabled", "true");
      else control.removeAttribute("aria-disabled");
      if (control === this.field) control.readOnly = locked;
    }
    setText(this.note, words);
    this.note.hidden = words === "";
    if (words) announce(words);
  }

  refused(words) {
    this.sent = false;
    this.lock(false, words);
  }

  close() {
    const focused = this.element.contains(document.activeElement);
    this.element.remove();
    if (focused) $("text").focus();
  }
}
