// One turn as the page shows it: what was asked, and the answer, whether it is stored, on its way or was never sent.

import { announce, copy, h, icon, iconButton, setText } from "./dom.js";
import { QuestionForm, Sentence } from "./inputs.js";
import { fill, said } from "./rich.js";
import { GrowingText } from "./text.js";
import { counted, dollars, ending, placeInLine, refusal, t } from "./words.js";

const LONG_CHARACTERS = 3_000;

export class Turn {
  /** `id`: the job's, or the key of a message that is not admitted yet. `acts`: again(turn), edit(turn), retry, discard, answer. */
  constructor(id, acts) {
    this.id = id;
    this.acts = acts;
    this.asked = null; // the text of the question
    this.askedCursor = null;
    this.askedId = null;
    this.stored = null; // the answer as the API gives it
    this.run = null; // the answer on its way
    this.sending = null; // what the outbox has of it
    this.element = h("section", { class: "turn" });
    this.question = null;
    this.answer = null;
    this.countdown = null;
    this.sentences = []; // that were added to the run
    this.forms = new Map(); // question id → its form
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

  /** Takes what a person said: the first of it is the question, the rest was added to the run. Ids are in order. */
  hear({ id, text, cursor }) {
    const known = this.askedId ?? (this.question === null || this.asked === text ? id : "");
    if (id > known) {
      this.sentence({ message: id, text, state: "taken" });
      return;
    }
    const added = { message: this.askedId, text: this.asked, state: "taken" };
    if (id < known) {
      this.question.remove();
      this.question = null;
    }
    this.askedId = id;
    this.askedCursor = cursor;
    this.ask(text);
    if (id < known) this.sentence(added);
  }

  ask(text) {
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
    this.asks = h("div", {});
    this.body = h("div", { class: "live" });
    this.state = h("div", { class: "state" });
    this.end = h("div", { hidden: true });
    this.tokens = h("p", { class: "usage", hidden: true });
    this.bar = h("div", { class: "acts" });
    this.growing = new GrowingText(this.body);
    this.answer = h(
      "article",
      { class: "message assistant", "aria-label": t("message.answer") },
      this.steps, this.body, this.asks, this.state, this.end, this.tokens, this.bar,
    );
    if (this.question === null) this.element.prepend(this.answer);
    else this.question.after(this.answer); // sentences come behind it, also those that were stored before it
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
    this.paintQuestions(run.ended ? new Map() : run.questions);
    for (const [id, text] of run.taken) this.sentence({ command: id, text, state: "taken" });
    this.answer.setAttribute("aria-busy", run.ended ? "false" : "true");
    if (run.ended) this.paintEnd(run.job.state, run.job.error, talking);
  }

  waitingFor(run, behind) {
    if (run.job?.cancel_requested || run.stopWanted) return t("state.stopping");
    if (run.job?.state === "queued") {
      if (run.again) return t("state.trying_again");
      if (run.job.queue_position) return placeInLine(run.job.queue_position);
      return t(behind ? "state.after_this" : "state.starting");
    }
    if (run.questions.size) return t("state.asks");
    if (run.status) return run.status;
    return run.text.length ? "" : t(run.job === null ? "thread.loading" : "state.working");
  }

  // ── what people say to it meanwhile ──

  paintQuestions(questions) {
    for (const [id, form] of this.forms) {
      if (questions.has(id)) continue;
      form.close();
      this.forms.delete(id);
    }
    for (const [id, question] of questions) {
      if (this.forms.has(id)) continue;
      const form = new QuestionForm(question, (text) => this.acts.answer(this, id, text));
      this.forms.set(id, form);
      this.asks.append(form.element);
    }
  }

  /** A sentence that was added to the run, and how it stands; known by its command, its message, or both. */
  sentence({ command = null, message = null, text, state, acts = null }) {
    let sentence = this.sentences.find((s) => (command !== null && s.command === command) || (message !== null && s.message === message));
    sentence ??= this.sentences.find((s) => s[command === null ? "message" : "command"] === null && s.says(text));
    if (sentence === undefined) {
      sentence = new Sentence(text);
      const later = message === null ? -1 : this.sentences.findIndex((s) => s.message === null || s.message > message);
      const at = later < 0 ? this.sentences.length : later;
      this.element.insertBefore(sentence.element, this.sentences[at]?.element ?? null);
      this.sentences.splice(at, 0, sentence);
    }
    sentence.command ??= command;
    sentence.message ??= message;
    sentence.acts ??= acts;
    sentence.show(state);
  }

  forgetSentence(command) {
    const at = this.sentences.findIndex((s) => s.command === command);
    if (at >= 0) this.sentences.splice(at, 1)[0].element.remove();
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
    this.paintQuestions(new Map());
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
