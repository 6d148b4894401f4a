// The list of conversations: pages, search, marks, renaming and deleting.

import { api } from "./api.js";
import { $, announce, h, iconButton, setText } from "./dom.js";
import { refusal, t } from "./words.js";

const PAGE = 50;
const TYPING_MS = 200;
const STOP_LOOK_MS = 400;
const STOP_PATIENCE_MS = 40_000;

export class Threads {
  constructor({ onOpen, onChanged, onDeleted }) {
    this.onOpen = onOpen;
    this.onChanged = onChanged;
    this.onDeleted = onDeleted;
    this.list = $("threads");
    this.search = $("search");
    this.known = new Map(); // by id, as last read
    this.rows = new Map();
    this.words = "";
    this.next = null;
    this.openId = null;
    this.renaming = null;
    this.loaded = false;
    this.search.addEventListener("input", () => {
      clearTimeout(this.typing);
      this.typing = setTimeout(() => this.find(), TYPING_MS);
    });
    this.search.addEventListener("keydown", (key) => {
      if (key.key === "Escape" && this.search.value) this.clearSearch();
      else if (key.key === "ArrowDown") this.list.querySelector("a")?.focus();
      else return;
      key.preventDefault();
    });
    $("search-clear").addEventListener("click", () => this.clearSearch());
    $("threads-more").addEventListener("click", () => this.more());
    this.list.addEventListener("keydown", (key) => this.onKey(key));
    $("delete-confirm").addEventListener("click", () => this.remove());
  }

  get(id) {
    return this.known.get(id);
  }

  clearSearch() {
    this.search.value = "";
    this.find();
    this.search.focus();
  }

  async find() {
    this.words = this.search.value.trim();
    $("search-clear").hidden = this.search.value === "";
    this.known.clear();
    this.next = null;
    await this.refresh();
  }

  path(after = null) {
    const query = new URLSearchParams({ limit: String(PAGE) });
    if (this.words) query.set("q", this.words);
    if (after) query.set("after", after);
    return `/api/threads?${query}`;
  }

  /** Reads the first page again; returns it. Threads of its stretch of time that it lacks are gone. */
  async refresh() {
    const words = this.words;
    try {
      const page = await api("GET", this.path());
      if (words !== this.words) return null;
      const last = page.next === null ? "" : page.items[page.items.length - 1].updated_at;
      const seen = new Set(page.items.map((thread) => thread.id));
      for (const [id, thread] of this.known) if (!seen.has(id) && thread.updated_at >= last) this.known.delete(id);
      if (![...this.known.values()].some((thread) => thread.updated_at < last)) this.next = page.next;
      for (const thread of page.items) this.known.set(thread.id, thread);
      this.loaded = true;
      this.show();
      return page.items;
    } catch (problem) {
      if (!this.loaded || !this.known.size) this.note(`${t("threads.failed")} ${refusal(problem.code, problem.detail)}`);
      throw problem;
    }
  }

  async more() {
    const words = this.words;
    try {
      const page = await api("GET", this.path(this.next));
      if (words !== this.words) return;
      for (const thread of page.items) this.known.set(thread.id, thread);
      this.next = page.next;
      this.show();
    } catch (problem) {
      this.note(refusal(problem.code, problem.detail));
    }
  }

  note(words) {
    $("threads-note").hidden = words === "";
    setText($("threads-note"), words);
  }

  /** What another part of the page knows sooner. */
  meet(thread) {
    const known = this.known.get(thread.id);
    if (known !== undefined) {
      this.known.set(thread.id, { ...known, ...thread });
      this.show();
    }
  }

  select(id) {
    this.openId = id;
    this.show();
  }

  show() {
    const newest = (a, b) => (a.updated_at < b.updated_at || (a.updated_at === b.updated_at && a.id < b.id) ? 1 : -1);
    const wanted = [...this.known.values()].sort(newest);
    for (const [id, row] of this.rows) {
      if (this.known.has(id)) continue;
      row.element.remove();
      this.rows.delete(id);
    }
    const focused = this.list.contains(document.activeElement) ? document.activeElement : null;
    wanted.forEach((thread, index) => {
      const row = this.rows.get(thread.id) ?? this.makeRow(thread.id);
      this.paint(row, thread);
      if (this.list.children[index] !== row.element) this.list.insertBefore(row.element, this.list.children[index] ?? null);
    });
    if (focused !== null && focused !== document.activeElement && focused.isConnected) focused.focus();
    $("threads-more").hidden = this.next === null;
    if (wanted.length) this.note("");
    else if (this.loaded) this.note(t(this.words ? "threads.none_found" : "threads.empty"));
  }

  makeRow(id) {
    const name = h("span", { class: "name" });
    const mark = h("span", { class: "dot", hidden: true });
    const said = h("span", { class: "quiet" });
    const link = h("a", { href: `/t/${id}` }, name, mark, said);
    link.addEventListener("click", (click) => {
      if (click.ctrlKey || click.metaKey || click.shiftKey || click.button) return; // a new tab or window
      click.preventDefault();
      this.onOpen(id);
    });
    const acts = h(
      "span",
      { class: "acts" },
      iconButton("edit", t("threads.rename"), () => this.rename(id)),
      iconButton("delete", t("threads.delete"), () => this.askToDelete(id)),
    );
    const row = { element: h("li", {}, link, acts), link, name, mark, said, acts };
    this.rows.set(id, row);
    return row;
  }

  paint(row, thread) {
    const title = thread.title || t("threads.untitled");
    const running = thread.current_job_id !== null;
    const unread = !running && thread.unread && thread.id !== this.openId;
    const open = thread.id === this.openId;
    setText(row.name, title);
    row.link.title = title;
    row.element.className = [open && "open", running && "running", unread && "unread"].filter(Boolean).join(" ");
    row.mark.hidden = !running && !unread;
    setText(row.said, running ? `, ${t("threads.running")}` : unread ? `, ${t("threads.unread")}` : "");
    if (open) row.link.setAttribute("aria-current", "page");
    else row.link.removeAttribute("aria-current");
    const [rename, remove] = row.acts.children;
    rename.setAttribute("aria-label", `${t("threads.rename")}: ${title}`);
    remove.setAttribute("aria-label", `${t("threads.delete")}: ${title}`);
  }

  onKey(key) {
    const item = key.target.closest("li");
    if (item === null || key.target.tagName === "INPUT") return;
    const id = [...this.rows].find(([, row]) => row.element === item)?.[0];
    const move = { ArrowDown: item.nextElementSibling, ArrowUp: item.previousElementSibling }[key.key];
    if (key.key === "ArrowDown" || key.key === "ArrowUp") (move?.querySelector("a") ?? (key.key === "ArrowUp" ? this.search : null))?.focus();
    else if (key.key === "F2") this.rename(id);
    else if (key.key === "Delete" || (key.key === "Backspace" && key.metaKey)) this.askToDelete(id);
    else return;
    key.preventDefault();
  }

  // ── renaming ──

  rename(id) {
    if (this.renaming !== null) return;
    const row = this.rows.get(id);
    const field = h("input", { type: "text", maxlength: "200", "aria-label": t("threads.rename_label") });
    field.value = this.known.get(id).title;
    this.renaming = id;
    row.link.hidden = true;
    row.acts.hidden = true;
    row.element.prepend(field);
    field.focus();
    field.select();
    let over = false;
    const end = async (keep, focus) => {
      if (over) return;
      over = true;
      const title = field.value.trim();
      field.remove();
      row.link.hidden = false;
      row.acts.hidden = false;
      this.renaming = null;
      if (focus) row.link.focus();
      if (!keep || title === this.known.get(id)?.title) return;
      this.meet({ id, title });
      try {
        const thread = await api("PATCH", `/api/threads/${id}`, { title });
        this.meet(thread);
        this.onChanged(thread);
      } catch (problem) {
        this.note(refusal(problem.code, problem.detail));
        this.refresh().catch(() => {});
      }
    };
    field.addEventListener("keydown", (key) => {
      if (key.isComposing || key.keyCode === 229) return;
      if (key.key === "Enter") end(true, true);
      else if (key.key === "Escape") end(false, true);
      else return;
      key.preventDefault();
      key.stopPropagation();
    });
    field.addEventListener("blur", () => end(true, false));
  }

  // ── deleting ──

  askToDelete(id) {
    this.deleting = id;
    const thread = this.known.get(id);
    setText($("delete-text"), t("delete.text", { title: thread.title || t("threads.untitled") }));
    $("delete-busy").hidden = thread.current_job_id === null;
    $("delete-error").hidden = true;
    $("delete-confirm").disabled = false;
    $("delete").showModal();
  }

  async remove() {
    const id = this.deleting;
    $("delete-confirm").disabled = true;
    try {
      await this.stopAndDelete(id);
      $("delete").close();
      const row = this.rows.get(id)?.element;
      const near = (row?.nextElementSibling ?? row?.previousElementSibling)?.querySelector("a") ?? this.search;
      this.known.delete(id);
      this.show();
      announce(t("delete.done"));
      near.focus();
      this.onDeleted(id);
    } catch (problem) {
      $("delete-error").hidden = false;
      setText($("delete-error"), t("delete.failed", { detail: refusal(problem.code, problem.detail) }));
      $("delete-confirm").disabled = false;
    }
  }

  /** A thread with a run cannot be deleted: every run of it is stopped, until none is left. */
  async stopAndDelete(id) {
    const until = Date.now() + STOP_PATIENCE_MS;
    for (;;) {
      try {
        await api("DELETE", `/api/threads/${id}`);
        return;
      } catch (problem) {
        if (problem.code === "not_found") return;
        if (problem.code !== "thread_busy" || Date.now() > until) throw problem;
      }
      const thread = await api("GET", `/api/threads/${id}`);
      if (thread.current_job_id !== null) await api("POST", `/api/jobs/${thread.current_job_id}/cancel`);
      await new Promise((wake) => setTimeout(wake, STOP_LOOK_MS));
    }
  }
}
