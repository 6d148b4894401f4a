// One turn as the page shows it: what was asked, and the answer, whether it is stored, on its way or was never sent.

import { announce, copy, h, icon, iconButton, setText } from "./dom.js";
import { fill, said } from "./rich.js";
import { GrowingText } from "./text.js";
import { counted, dollars, ending, placeInLine, refusal, t } from "./words.js";

const LONG_CHARACTERS = 3_000;

export class Turn {
  /** `id`: the job's, or the key of a message that is not admitted yet. `acts`: again(turn), edit(turn), retry, discard. */
  constructor(id, acts) {
    this.id = id;
    this.acts = acts;
    this.asked = null; // the text of the question
    this.askedCursor = null;
    this.stored = null; // the answer as the API gives it
    this.run = null; // the answer on its way
    this.sending = null; // what the outbox has of it
    this.element = h("section", { class: "turn" });
    this.question = null;
    this.answer = null;
    this.countdown = null;
  }

  get unended() {
    return this.stored === null && this.run !== null && !this.run.ended;
  }

  /** The places of its first and last message, for pages before and after. */
  get firstCursor() {
    return this.askedCursor ?? this.stored?.cursor ?? null;
  }

  get lastCursor() {
    return this.stored?.cursor ?? this.askedCursor;
  }

  // ── the question ──

  ask(text, cursor = null) {
    if (cursor !== null) this.askedCursor = cursor;
    if (this.question !== null) return;
    this.asked = text;
    const acts = h("div", { class: "acts" }, this.copyButton(() => this.asked), iconButton("edit", t("message.edit"), () => this.acts.edit(this)));
    const words = h("div", { class: "text" }, text);
    this.question = h("article", { class: "message user", "aria-label": t("message.you") }, words, acts);
    if (text.length > LONG_CHARACTERS) {
      this.question.classList.add("long");
      words.tabIndex = 0;
    }
    this.element.prepend(this.question);
  }

  /** How the sending stands; null once it was admitted. */
  send(entry, online) {
    this.sending = entry;
    clearInterval(this.countdown);
    this.question.classList.toggle("waiting", entry !== null && !entry.problem);
    this.question.classList.toggle("refused", Boolean(entry?.problem));
    this.note?.remove();
    this.note = null;
    if (entry === null) return;
    if (entry.problem) {
      const retry = h("button", { type: "button", class: "button", onclick: () => this.acts.retry(this) }, t("send.retry"));
      const edit = h("button", { type: "button", class: "button", onclick: () => this.acts.edit(this) }, t("message.edit"));
      const discard = h("button", { type: "button", class: "button", onclick: () => this.acts.discard(this) }, t("send.discard"));
      const words = refusal(entry.problem.code, entry.problem.detail);
      this.note = h("div", { class: "ending bad" }, h("span", {}, words), retry, edit, discard);
      this.count(retry, entry.problem.until);
      announce(words);
    } else {
      this.note = h("p", { class: "state" }, h("span", { class: "spin" }), t(online ? "send.sending" : "send.waiting"));
    }
    this.question.append(this.note);
  }

  /** A refusal may say when to come back. */
  count(button, until) {
    const tick = () => {
      const left = Math.ceil((until - Date.now()) / 1000);
      button.disabled = left > 0;
      setText(button, left > 0 ? t("send.retry_in", { n: left }) : t("send.retry"));
      if (left <= 0) clearInterval(this.countdown);
    };
    if (!until || until <= Date.now()) return;
    this.countdown = setInterval(tick, 500);
    tick();
  }

  // ── the answer on its way ──

  follow(run) {
    this.run = run;
    if (this.answer === null) this.makeAnswer();
  }

  makeAnswer() {
    this.steps = h("div", { class: "steps", hidden: true });
    this.body = h("div", { class: "live" });
    this.state = h("div", { class: "state" });
    this.end = h("div", { hidden: true });
    this.tokens = h("p", { class: "usage", hidden: true });
    this.bar = h("div", { class: "acts" });
    this.growing = new GrowingText(this.body);
    this.answer = h(
      "article",
      { class: "message assistant", "aria-label": t("message.answer") },
      this.steps, this.body, this.state, this.end, this.tokens, this.bar,
    );
    this.element.append(this.answer);
  }

  /** Shows the run as it stands. `behind`: another answer of this conversation comes first. */
  paint(behind) {
    const run = this.run;
    if (this.stored !== null || run === null) return;
    this.growing.paint(run.text);
    const talking = run.text.length > 0;
    if (talking && !this.begun && !run.ended) announce(t("announce.begun"));
    this.begun ||= talking;
    this.paintSteps(run);
    this.paintUsage(run);
    const words = run.ended ? "" : this.waitingFor(run, behind);
    const caret = !run.ended && words === "";
    this.body.lastElementChild?.classList.toggle("caret", caret);
    for (const block of this.body.querySelectorAll(".caret:not(:last-child)")) block.classList.remove("caret");
    this.state.hidden = words === "";
    if (words !== "" && this.state.dataset.words !== words) {
      this.state.dataset.words = words;
      this.state.replaceChildren(h("span", { class: run.job?.state === "queued" && behind ? "wait" : "spin" }), words);
      announce(words);
    }
    this.answer.setAttribute("aria-busy", run.ended ? "false" : "true");
    if (run.ended) this.paintEnd(run.job.state, run.job.error, talking);
  }

  waitingFor(run, behind) {
    if (run.job?.cancel_requested) return t("state.stopping");
    if (run.job?.state === "queued") {
      if (run.again) return t("state.trying_again");
      if (run.job.queue_position) return placeInLine(run.job.queue_position);
      return t(behind ? "state.after_this" : "state.starting");
    }
    if (run.status) return run.status;
    return run.text.length ? "" : t(run.job === null ? "thread.loading" : "state.working");
  }

  paintSteps(run) {
    this.steps.hidden = run.steps.size === 0;
    const key = JSON.stringify([...run.steps.values()]) + run.ended;
    if (run.steps.size === 0 || this.steps.dataset.key === key) return;
    this.steps.dataset.key = key;
    const rows = [...run.steps.values()].map((step) =>
      h(
        "li",
        { class: step.how === "failed" ? "bad" : null },
        h("span", { class: "what" }, step.name),
        h("span", { class: "with" }, step.said || step.with),
        h("span", { class: "how" }, t(`work.step_${step.how}`)),
      ),
    );
    const list = h("ul", { "aria-label": t("work.steps") }, ...rows);
    if (!run.ended) this.steps.replaceChildren(list);
    else this.steps.replaceChildren(h("details", {}, h("summary", {}, counted("work.summary", rows.length)), list));
  }

  paintUsage(run) {
    this.tokens.hidden = run.usage === null;
    if (run.usage === null) return;
    const { input, output, cost, model } = run.usage;
    setText(this.tokens, [model, t("work.usage", { input, output }), cost ? dollars(cost) : ""].filter(Boolean).join(" · "));
  }

  // ── the answer that is stored ──

  settle(message) {
    if (this.answer === null) this.makeAnswer();
    const watched = this.run !== null && this.stored === null;
    this.stored = message;
    this.state.hidden = true;
    this.body.classList.remove("live");
    if (message.html !== null) {
      fill(this.body, message.html);
    } else {
      this.body.className = "live";
      this.growing.clear();
      this.growing.paint({ text: message.text, age: 0 });
    }
    this.answer.setAttribute("aria-busy", "false");
    this.paintEnd(message.status, message.error, message.text !== "");
    if (!watched) return;
    const last = ending(message.status, message.error);
    announce(last === null ? t("announce.done") : last.words);
  }

  paintEnd(state, error, talked) {
    const key = `${state} ${error?.code} ${talked} ${this.stored !== null}`;
    if (this.end.dataset.key === key) return;
    this.end.dataset.key = key;
    let last = ending(state, error);
    if (last === null && !talked) last = { words: t("message.nothing"), tone: "calm", again: false };
    this.end.hidden = last === null;
    this.end.className = `ending ${last?.tone ?? ""}`;
    this.end.replaceChildren();
    if (last !== null) {
      this.end.append(h("span", {}, last.words));
      if (last.again) {
        this.end.append(h("button", { type: "button", class: "button", onclick: () => this.acts.again(this) }, icon("again"), t("state.ask_again")));
      }
    }
    const text = () => this.stored?.text ?? this.run?.text.text ?? "";
    this.bar.replaceChildren();
    if (talked) this.bar.append(this.copyButton(text));
    this.bar.append(iconButton("again", t("message.again"), () => this.acts.again(this)));
  }

  copyButton(text) {
    const button = iconButton("copy", t("message.copy"), async () => {
      const done = await copy(text());
      button.replaceChildren(icon(done ? "done" : "close"));
      const label = h("span", { class: "quiet" });
      said(label, done, t("message.copy"));
      setTimeout(() => button.replaceChildren(icon("copy")), 1_500);
    });
    return button;
  }
}
