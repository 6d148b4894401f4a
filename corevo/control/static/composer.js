// The field one writes in: it grows, Enter sends, and while an answer is on its way it asks where the message shall stand.

import { $, browser, h, setText, tab } from "./dom.js";
import { characters } from "./text.js";
import { settings, t } from "./words.js";

/** A frame may have a megabyte; what makes it longer than its characters are quotes and control characters. */
const FRAME_BYTES = 1_000_000;
const COUNT_FROM = 0.9;

export class Composer {
  constructor({ onSend, onStop, onEditLast }) {
    this.onSend = onSend;
    this.onStop = onStop;
    this.onEditLast = onEditLast;
    this.field = $("text");
    this.hint = $("hint");
    this.select = $("agent");
    this.busy = false;
    this.stopping = false;
    this.agents = [];
    this.draft = "draft.new";
    this.tooLong = false;
    this.field.addEventListener("input", () => this.changed());
    this.field.addEventListener("keydown", (key) => this.onKey(key));
    $("composer").addEventListener("submit", (submit) => {
      submit.preventDefault();
      this.send("enqueue");
    });
    $("instead").addEventListener("click", () => this.send("replace"));
    $("add").addEventListener("click", () => this.send("steer"));
    $("stop").addEventListener("click", () => this.stop());
    $("editing").querySelector("button").addEventListener("click", () => this.leaveEditing());
    this.select.addEventListener("change", () => {
      this.chosen = this.select.value;
      browser.set("agent", this.select.value);
    });
  }

  get text() {
    return this.field.value.replaceAll("\0", "").toWellFormed?.() ?? this.field.value;
  }

  get empty() {
    return this.field.value.trim() === "";
  }

  get agent() {
    if (this.agents.length === 0) return null;
    return this.agents.length === 1 ? this.agents[0].name : this.select.value;
  }

  /** Another conversation: its own draft, and its own agent unless one is chosen. */
  open(threadId) {
    this.draft = `draft.${threadId ?? "new"}`;
    this.field.value = tab.get(this.draft) ?? "";
    this.chosen = null;
    this.preferred = null;
    $("editing").hidden = true;
    this.changed();
    this.chooseAgent();
  }

  /** A new conversation got its id: what is written meanwhile stays. */
  named(threadId) {
    tab.set(this.draft, null);
    this.draft = `draft.${threadId}`;
    tab.set(this.draft, this.field.value);
  }

  setAgents(agents) {
    if (JSON.stringify(agents) !== JSON.stringify(this.agents)) {
      this.agents = agents;
      this.select.replaceChildren(...agents.map((agent) => h("option", { value: agent.name }, agent.name)));
      $("agent-field").hidden = agents.length < 2;
    }
    this.chooseAgent();
  }

  prefer(agent) {
    this.preferred = agent;
    this.chooseAgent();
  }

  chooseAgent() {
    const served = (name) => this.agents.some((agent) => agent.name === name);
    const wish = [this.chosen, this.preferred, browser.get("agent")].find(served);
    if (wish && this.select.value !== wish) this.select.value = wish;
  }

  setBusy(busy, stopping) {
    if (busy === this.busy && stopping === this.stopping) return;
    this.busy = busy;
    this.stopping = stopping;
    this.show();
  }

  edit(text) {
    this.field.value = text;
    $("editing").hidden = false;
    this.changed();
    this.field.focus();
    this.field.setSelectionRange(text.length, text.length);
  }

  leaveEditing() {
    $("editing").hidden = true;
    this.field.value = "";
    this.changed();
    this.field.focus();
  }

  changed() {
    this.field.style.height = "auto";
    this.field.style.height = `${this.field.scrollHeight}px`;
    tab.set(this.draft, this.field.value.length < 100_000 ? this.field.value : null);
    this.show();
  }

  show() {
    const length = this.field.value.length > settings.text_limit * COUNT_FROM ? characters(this.field.value) : 0;
    this.tooLong =
      length > settings.text_limit || (length > 0 && new TextEncoder().encode(JSON.stringify(this.field.value)).length > FRAME_BYTES);
    const choice = this.busy && !this.empty;
    const count = { n: length, limit: settings.text_limit };
    let hint = t(choice ? "composer.busy" : "composer.hint");
    if (this.tooLong) hint = t("composer.too_long", count);
    else if (length) hint = t("composer.count", count);
    setText(this.hint, hint);
    this.hint.className = `hint${this.tooLong ? " bad" : ""}${choice || length ? "" : " keys"}`;
    this.field.setAttribute("aria-invalid", String(this.tooLong));
    $("stop").hidden = !this.busy;
    $("stop").disabled = this.stopping;
    setText($("stop").querySelector("span"), t(this.stopping ? "composer.stopping" : "composer.stop"));
    $("composer").classList.toggle("choice", choice);
    $("instead").hidden = !choice;
    $("instead").disabled = this.tooLong;
    $("add").hidden = !choice;
    $("add").disabled = this.tooLong;
    $("send").hidden = this.busy && this.empty;
    $("send").disabled = this.empty || this.tooLong;
    $("send").title = choice ? t("composer.after_hint") : "";
    setText($("send").querySelector("span"), t(choice ? "composer.after" : "composer.send"));
  }

  send(onBusy) {
    if (this.empty || this.tooLong) return;
    const text = this.text;
    this.field.value = "";
    $("editing").hidden = true;
    this.changed();
    this.field.focus();
    this.onSend(text, onBusy);
  }

  stop() {
    if (!this.busy || this.stopping) return;
    this.onStop();
    this.field.focus();
  }

  onKey(key) {
    if (key.isComposing || key.keyCode === 229) return; // Enter ends the choice of a character, not the message
    if (key.key === "Enter" && !key.shiftKey && !key.altKey) {
      key.preventDefault();
      this.send(key.ctrlKey || key.metaKey ? (this.busy ? "replace" : "enqueue") : "enqueue");
    } else if (key.key === "Enter" && key.altKey && !key.shiftKey && this.busy) {
      key.preventDefault();
      this.send("steer");
    } else if (key.key === "ArrowUp" && this.field.value === "") {
      if (this.onEditLast()) key.preventDefault();
    } else if (key.key === "Escape" && !$("editing").hidden) {
      this.leaveEditing();
    }
  }
}
