// The open conversation: which turns are in the page, their streams, and a window over a history of any length.

import { api } from "./api.js";
import { $, announce, setText } from "./dom.js";
import { Added, NOT_TAKEN } from "./inputs.js";
import { frameOf } from "./outbox.js";
import { Run } from "./run.js";
import { Turn } from "./turn.js";
import { t, refusal } from "./words.js";

const PAGE = 20;
/** More turns than this are not kept in the page; they come back when the reader scrolls to them. */
const TURNS_LIMIT = 120;
/** A frame that took long earns a pause, so that a slow machine stays usable. */
const SLOW_MS = 24;
/** History comes in one go: it is painted when nothing came for the first time, at the latest after the second. */
const REPLAY_GAP_MS = 50;
const REPLAY_MOST_MS = 500;
/** So long a stream may lag behind what is stored. */
const STREAM_END_MS = 3_000;
/** The pause before a command is asked for again. */
const LOOK_MS = 2_000;

export class Conversation {
  constructor({ connection, outbox, follower, onChange, onThread, onBlank, edit, demo, agent }) {
    Object.assign(this, { connection, outbox, follower, onChange, onThread, onBlank, demo, agent });
    this.acts = {
      again: (turn) => this.send(turn.asked ?? "", "enqueue"),
      edit: (turn) => edit(turn.asked ?? "", turn),
      retry: (turn) => this.retry(turn),
      discard: (turn) => this.discard(turn),
      answer: (turn, questionId, answer) => this.answer(turn.id, questionId, answer),
    };
    this.added = new Added();
    this.looking = new Set(); // sentences whose command is being read
    this.log = $("log");
    this.edge = $("edge");
    this.blank = $("blank");
    this.dirty = new Set(); // runs with something to paint
    this.painting = false;
    this.visit = 0;
    this.runs = new Map();
    this.rest = 0;
    this.forget();
    this.watcher = new IntersectionObserver((seen) => seen.some((s) => s.isIntersecting) && this.onEdge(), {
      root: $("scroller"),
      rootMargin: "900px 0px",
    });
    this.watcher.observe(this.edge);
    $("scroller").addEventListener("scroll", () => this.newer !== null && this.follower.gap < 900 && this.loadNewer(), { passive: true });
    addEventListener("visibilitychange", () => this.schedule());
  }

  forget() {
    this.turns = []; // in the page, oldest first
    this.byId = new Map();
    this.thread = null;
    this.threadId = null;
    this.fresh = null;
    this.knownAt = null; // the thread's updated_at that the page shows
    this.older = null; // cursor of the page before; undefined while unknown
    this.newer = null; // cursor of the last kept message, when newer ones are not in the page
    this.loading = null;
    this.opening = null;
    this.wanted = false;
    this.missing = false; // the thread that was asked for is not there
  }

  get busy() {
    return [...this.runs.values()].some((run) => !run.ended) || this.outbox.of(this.threadId, this.fresh).some((e) => !e.problem);
  }

  get current() {
    return [...this.runs.values()].find((run) => !run.ended) ?? null;
  }

  // ── opening ──

  async open(threadId) {
    for (const run of this.runs.values()) this.connection.transmit({ op: "detach", job_id: run.id });
    this.runs.clear();
    this.dirty.clear();
    this.forget();
    this.visit += 1;
    this.threadId = threadId;
    this.log.replaceChildren();
    this.follower.detached = false;
    this.follower.following = true;
    this.edge.hidden = true;
    if (threadId === null) {
      this.fresh = `fresh-${Date.now()}-${Math.random()}`;
      for (const entry of this.outbox.entries.values()) if (entry.fresh) this.fresh = entry.fresh;
      this.onBlank();
      this.showPending();
      this.showBlank();
      this.onChange();
      return;
    }
    this.say(null);
    this.onChange();
    await this.loadNewest();
  }

  /** The newest page instead of what is shown; asked for twice, it is read once. */
  loadNewest() {
    this.opening ??= this.readNewest().finally(() => (this.opening = null));
    return this.opening;
  }

  async readNewest() {
    const visit = this.visit;
    const patience = setTimeout(() => visit === this.visit && !this.turns.length && this.say({ title: "", text: t("thread.loading") }), 400);
    try {
      const [thread, page] = await Promise.all([api("GET", `/api/threads/${this.threadId}`), this.page("order=newest")]);
      if (visit !== this.visit) return;
      this.say(null);
      this.log.replaceChildren();
      this.turns = [];
      this.byId.clear();
      this.newer = null;
      this.follower.detached = false;
      this.older = page.next;
      this.merge(page.items.reverse());
      this.showPending();
      this.meet(thread);
      this.showEdge();
      this.follower.toEnd();
      if (!this.turns.length) this.showBlank();
    } catch (problem) {
      if (visit !== this.visit) return;
      if (this.turns.length) return; // what is shown stays; the next look mends it
      if (problem.code === "not_found") this.gone();
      else this.say({ title: t("thread.failed"), text: refusal(problem.code, problem.detail), retry: true });
    } finally {
      clearTimeout(patience);
    }
  }

  page(query) {
    return api("GET", `/api/threads/${this.threadId}/messages?limit=${PAGE}&${query}`);
  }

  meet(thread) {
    this.thread = thread;
    this.knownAt = thread.updated_at;
    this.showAdded();
    this.onThread(thread);
    this.onChange();
  }

  /** What the list says of the open thread. */
  async look(thread) {
    if (thread.id !== this.threadId) return;
    this.thread = thread;
    if (thread.updated_at !== this.knownAt) await this.refresh();
    this.onThread(thread);
    await this.lookAtQueue();
  }

  /** Reads the newest messages again: another tab, device or gateway may have added some. */
  async refresh() {
    if (this.threadId === null || this.newer !== null) return;
    if (this.loading) {
      this.wanted = true;
      return;
    }
    const visit = this.visit;
    this.loading = (async () => {
      try {
        const [thread, page] = await Promise.all([api("GET", `/api/threads/${this.threadId}`), this.page("order=newest")]);
        if (visit !== this.visit) return;
        const items = page.items.reverse();
        if (this.turns.length && page.next && !items.some((m) => this.byId.has(m.job_id))) {
          this.loading = null;
          await this.loadNewest(); // more happened than one page holds
          return;
        }
        if (!this.turns.length) this.older = page.next;
        this.merge(items);
        this.meet(thread);
        if (this.turns.length) this.say(null);
        this.showEdge();
      } catch (problem) {
        if (visit === this.visit && problem.code === "not_found") this.gone();
      }
    })();
    await this.loading;
    this.loading = null;
    if (this.wanted && visit === this.visit) {
      this.wanted = false;
      await this.refresh();
    }
  }

  /** The thread was deleted, or never was: what is written next begins a new one. */
  gone() {
    this.open(null);
    this.missing = true;
    this.showBlank();
  }

  /** A place in the queue changes without a word: others leave it. */
  async lookAtQueue() {
    for (const run of this.runs.values()) {
      if (run.ended || !(run.job?.queue_position > 0)) continue;
      try {
        const job = await api("GET", `/api/jobs/${run.id}`);
        if (run.job?.state === "queued") this.frame({ ev: "job", job });
      } catch {
        // the next look
      }
    }
  }

  // ── turns ──

  /** Takes messages, oldest first, into the page; new turns stand where the page has them. */
  merge(items, { before = null, more = false } = {}) {
    let previous = null;
    items.forEach((message, index) => {
      let turn = this.byId.get(message.job_id);
      if (turn === undefined) {
        turn = new Turn(message.job_id, this.acts);
        this.byId.set(turn.id, turn);
        this.insert(turn, previous, before);
      }
      previous = turn;
      if (message.role === "user") {
        turn.hear(message);
      } else if (message.role === "assistant" && turn.stored === null && !this.isComing(turn)) {
        turn.settle(message);
        this.runs.delete(turn.id);
      }
      const cut = more && index === items.length - 1; // its answer may be on the next page
      const answered = turn.stored !== null || items.some((m) => m.job_id === message.job_id && m.role === "assistant");
      if (message.role === "user" && !answered && !cut) this.follow(turn);
    });
    this.schedule();
  }

  /** Whether the end of an answer that is stored already is still on its way: then it is seen to its end first. */
  isComing(turn) {
    const run = this.runs.get(turn.id);
    if (run === undefined || run.ended || !this.connection.open) return false;
    run.storedAt ??= performance.now();
    const left = STREAM_END_MS - (performance.now() - run.storedAt);
    if (left > 0) setTimeout(() => this.runs.get(run.id) === run && this.refresh(), left + 50);
    return left > 0;
  }

  insert(turn, previous, before) {
    let at = this.turns.length;
    if (previous !== null) at = this.turns.indexOf(previous) + 1;
    else if (before !== null) at = this.turns.indexOf(before);
    else while (at > 0 && this.turns[at - 1].sending !== null) at -= 1; // what is not admitted comes last
    const next = this.turns[at] ?? null;
    this.turns.splice(at, 0, turn);
    this.log.insertBefore(turn.element, next?.element ?? null);
  }

  remove(turn) {
    const at = this.turns.indexOf(turn);
    if (at >= 0) this.turns.splice(at, 1);
    this.byId.delete(turn.id);
    turn.element.remove();
  }

  follow(turn, job = null) {
    let run = this.runs.get(turn.id);
    if (run === undefined) {
      run = new Run(turn.id, job);
      this.runs.set(turn.id, run);
      if (job === null) this.attach(run);
    }
    turn.follow(run);
    this.touch(run);
    this.onChange();
  }

  attach(run) {
    const frame = { op: "attach", ref: `attach:${run.id}`, job_id: run.id };
    if (run.cursor !== null) frame.after = run.cursor;
    run.replayUntil = performance.now() + REPLAY_MOST_MS;
    this.connection.transmit(frame);
  }

  // ── the window ──

  onEdge() {
    if (this.older !== null && this.turns.length && !this.fetching) this.loadOlder();
  }

  showEdge(words = null) {
    const beginning = this.older === null && this.turns.length > 10;
    this.edge.hidden = !this.turns.length || (this.older === null && !beginning);
    setText(this.edge, words ?? t(beginning ? "thread.beginning" : "thread.older"));
    this.watcher.unobserve(this.edge); // observed anew, it tells at once when it is in sight already
    if (this.older !== null && words === null) this.watcher.observe(this.edge);
  }

  async loadOlder() {
    const visit = this.visit;
    this.fetching = true;
    let failed = false;
    try {
      const page = await this.page(`order=newest&after=${encodeURIComponent(this.older)}`);
      if (visit !== this.visit) return;
      const first = this.turns[0] ?? null;
      this.follower.holding(first?.element, () => {
        this.merge(page.items.reverse(), { before: first });
        this.older = page.next;
        while (this.turns.length > TURNS_LIMIT) this.dropLast();
      });
    } catch {
      failed = visit === this.visit;
    } finally {
      this.fetching = false;
      if (visit === this.visit) this.showEdge(failed ? t("thread.older_failed") : null);
      if (failed) setTimeout(() => visit === this.visit && this.showEdge(), 5_000);
    }
  }

  dropLast() {
    const turn = this.turns[this.turns.length - 1];
    if (turn.sending !== null) return;
    this.remove(turn);
    this.newer = this.turns[this.turns.length - 1].lastCursor;
    this.follower.detached = true;
    this.follower.following = false;
  }

  async loadNewer() {
    if (this.fetching) return;
    const visit = this.visit;
    this.fetching = true;
    try {
      const page = await this.page(`after=${encodeURIComponent(this.newer)}`);
      if (visit !== this.visit) return;
      this.merge(page.items, { more: page.next !== null });
      this.newer = page.next;
      this.follower.detached = this.newer !== null;
      this.follower.holding(this.turns[this.turns.length - 1]?.element, () => {
        while (this.turns.length > TURNS_LIMIT) {
          this.remove(this.turns[0]);
          this.older = this.turns[0].firstCursor;
        }
      });
      if (this.newer === null) this.showPending();
      this.showEdge();
    } catch {
      // scrolling on tries again
    } finally {
      this.fetching = false;
    }
  }

  async toNewest() {
    if (this.newer !== null) await this.loadNewest();
    this.follower.toEnd();
  }

  // ── sending ──

  async send(text, onBusy) {
    if (this.newer !== null) await this.toNewest();
    const entry = this.outbox.add({ text, thread_id: this.threadId, fresh: this.fresh, agent: this.agent(), on_busy: onBusy });
    this.say(null);
    this.showPending();
    this.follower.toEnd();
    this.flush();
    this.onChange();
  }

  showPending() {
    for (const entry of this.outbox.of(this.threadId, this.fresh)) {
      let turn = this.byId.get(entry.key);
      if (turn === undefined) {
        turn = new Turn(entry.key, this.acts);
        this.byId.set(turn.id, turn);
        this.insert(turn, this.turns[this.turns.length - 1] ?? null, null);
        turn.ask(entry.text);
      }
      turn.send(entry, this.connection.open);
    }
  }

  flush() {
    for (const entry of this.outbox.ready()) this.connection.transmit(frameOf(entry));
  }

  retry(turn) {
    turn.sending.problem = null;
    turn.sending.agent = this.agent() ?? turn.sending.agent;
    turn.send(turn.sending, this.connection.open);
    this.flush();
    this.onChange();
  }

  discard(turn) {
    clearInterval(turn.countdown);
    this.outbox.drop(turn.id);
    this.remove(turn);
    if (!this.turns.length) this.showBlank();
    this.onChange();
  }

  stop() {
    const run = this.current;
    if (run !== null) return this.cancel(run.id);
    for (const entry of this.outbox.of(this.threadId, this.fresh)) {
      if (this.connection.open) entry.unwanted = true; // it may be admitted already: then it is stopped at once
      else this.discard(this.byId.get(entry.key));
    }
    return undefined;
  }

  // The wish is kept: whether or not the frame got through, it is said again when the socket is back.
  cancel(jobId) {
    this.connection.transmit({ op: "cancel", ref: `cancel:${jobId}`, job_id: jobId });
    const run = this.runs.get(jobId);
    if (run === undefined || run.stopWanted) return;
    run.stopWanted = true;
    this.touch(run);
    this.onChange();
  }

  get stopping() {
    return this.current?.job?.cancel_requested === true || this.current?.stopWanted === true;
  }

  // ── what is said to a run that goes on ──

  /** Whether the answer to a question went out. */
  answer(jobId, questionId, answer) {
    return this.connection.transmit({ op: "answer", ref: `answer:${jobId}:${questionId}`, job_id: jobId, question_id: questionId, answer });
  }

  /** An answer that came too late is known by its command only. */
  async answered(form, { ref, command }) {
    const [, jobId, questionId] = ref.split(":");
    form.sent = false;
    for (let state = command.state; form.element.isConnected; state = await this.stateOf(jobId, command.id)) {
      const run = this.runs.get(jobId);
      if (NOT_TAKEN.has(state) && run !== undefined) {
        announce(t("input.too_late"));
        run.questions.delete(questionId);
        this.touch(run);
        return;
      }
      await new Promise((done) => setTimeout(done, LOOK_MS));
    }
  }

  async stateOf(jobId, commandId) {
    try {
      return (await api("GET", `/api/jobs/${jobId}/commands/${commandId}`)).state;
    } catch (problem) {
      return problem.code === "not_found" ? "unknown" : null;
    }
  }

  /** The sentences that this tab added, each with its turn; of a run that has ended, what became of them. */
  showAdded() {
    for (const entry of this.added.of(this.threadId)) {
      const turn = this.byId.get(entry.job_id);
      if (turn === undefined) continue;
      if (entry.state === "added" && turn.run?.taken.has(entry.command_id)) this.added.become(entry, "taken");
      const acts = {
        send: () => this.offered(turn, entry) && this.send(entry.text, "enqueue"),
        discard: () => this.offered(turn, entry),
      };
      turn.sentence({ command: entry.command_id, text: entry.text, state: entry.state, acts });
      if (entry.state === "added" && (turn.stored !== null || turn.run?.ended)) this.lookAtAdded(entry);
    }
  }

  async lookAtAdded(entry) {
    if (this.looking.has(entry)) return;
    this.looking.add(entry);
    const state = await this.stateOf(entry.job_id, entry.command_id);
    this.looking.delete(entry);
    if (entry.state !== "added") return;
    if (state === "done") this.added.become(entry, "taken");
    else if (NOT_TAKEN.has(state)) this.added.become(entry, state);
    else setTimeout(() => entry.thread_id === this.threadId && this.showAdded(), LOOK_MS);
    if (entry.state !== "added") this.showAdded();
  }

  offered(turn, entry) {
    turn.forgetSentence(entry.command_id);
    return this.added.drop(entry);
  }

  // ── what the socket says ──

  connected() {
    for (const run of this.runs.values()) {
      this.attach(run);
      if (run.stopWanted && !run.ended) this.cancel(run.id);
    }
    this.flush();
    this.showPending();
    for (const turn of this.turns) for (const form of turn.forms.values()) if (form.sent) form.refused("");
    if (this.threadId === null) return;
    if (this.turns.length) this.refresh();
    else this.loadNewest();
  }

  frame(frame) {
    const id = frame.ev === "job" ? frame.job.id : frame.job_id;
    if (frame.ev === "ack") return this.acknowledged(frame);
    if (frame.ev === "error") return this.refused(frame);
    const run = this.runs.get(id);
    if (run === undefined) return undefined;
    const ended = run.ended;
    run.take(frame);
    run.heardAt = performance.now();
    this.touch(run);
    if (frame.type === "input.accepted") this.showAdded();
    if (frame.ev === "job") {
      this.onChange();
      if (run.ended && !ended) this.finished(run);
    }
    return undefined;
  }

  acknowledged(frame) {
    const form = this.formOf(frame);
    if (form !== undefined) {
      this.answered(form, frame);
      return;
    }
    const entry = this.outbox.drop(frame.ref);
    if (entry === undefined) {
      if (frame.job && this.runs.has(frame.job.id)) this.frame({ ev: "job", job: frame.job });
      return;
    }
    const job = frame.job;
    if (entry.unwanted) this.cancel(job.id);
    if (frame.outcome === "steered") {
      this.added.add({ command_id: frame.command.id, job_id: job.id, thread_id: job.thread_id, text: entry.text, state: "added" });
    }
    const here = entry.thread_id === null ? entry.fresh === this.fresh : entry.thread_id === this.threadId;
    if (entry.fresh !== null) this.outbox.named(entry.fresh, job.thread_id);
    if (here) {
      if (this.threadId === null) {
        this.threadId = job.thread_id;
        this.fresh = null;
        this.onThread({ id: job.thread_id, title: "" });
      }
      if (frame.outcome === "steered") this.steered(entry, job);
      else this.admitted(entry, job);
    } else {
      this.connection.transmit({ op: "detach", job_id: job.id });
    }
    this.flush();
    this.onChange(job.thread_id);
  }

  admitted(entry, job) {
    const turn = this.byId.get(entry.key);
    if (turn === undefined || this.byId.has(job.id)) {
      if (turn !== undefined) this.remove(turn); // a look at the thread was quicker
      if (!this.byId.has(job.id)) this.refresh();
      else if (this.runs.has(job.id)) this.frame({ ev: "job", job });
      return;
    }
    this.byId.delete(entry.key);
    turn.id = job.id;
    this.byId.set(job.id, turn);
    turn.send(null);
    this.follow(turn, job);
  }

  /** The sentence stands with the run that it was added to. */
  steered(entry, job) {
    const turn = this.byId.get(entry.key);
    if (turn !== undefined) this.remove(turn);
    if (this.runs.has(job.id)) this.frame({ ev: "job", job });
    else this.refresh(); // another tab or device asked for it
    this.showAdded();
    this.follower.toEnd();
  }

  /** The form that a frame speaks of, if it is the answer to an answer. */
  formOf(frame) {
    const [what, jobId, questionId] = String(frame.ref ?? "").split(":");
    return what === "answer" ? this.byId.get(jobId)?.forms.get(questionId) : undefined;
  }

  refused(frame) {
    this.formOf(frame)?.refused(refusal(frame.code, frame.detail));
    const [what, id] = String(frame.ref ?? "").split(":");
    const pause = (frame.retry_after_seconds ?? 2) * 1000;
    const run = this.runs.get(id);
    if (what === "attach" && run !== undefined) {
      if (frame.code === "bad_cursor") {
        run.forget();
        this.touch(run);
        this.attach(run);
      } else if (frame.code === "not_found") {
        this.runs.delete(id);
        this.refresh();
      } else {
        setTimeout(() => this.runs.has(id) && this.attach(run), pause);
      }
      return;
    }
    const entry = this.outbox.entries.get(frame.ref);
    if (entry === undefined) return;
    entry.problem = { code: frame.code, detail: frame.detail, until: frame.retry_after_seconds ? Date.now() + pause : 0 };
    this.outbox.keep();
    this.byId.get(entry.key)?.send(entry, true);
    this.onChange();
  }

  /** The answer is stored by now: what is shown becomes the stored one. */
  async finished(run) {
    this.paint();
    this.onChange(this.threadId);
    await this.refresh();
    this.showAdded();
    const turn = this.byId.get(run.id);
    if (turn?.stored === null && this.newer === null) setTimeout(() => this.runs.has(run.id) && this.finished(run), 3_000);
  }

  // ── painting ──

  touch(run) {
    this.dirty.add(run);
    this.schedule();
  }

  /** Everything that arrived until the next frame is painted in it, replayed or live. A hidden page paints slowly. */
  schedule() {
    if (this.painting || this.dirty.size === 0) return;
    this.painting = true;
    const paint = () => {
      this.painting = false;
      this.paint();
    };
    if (document.visibilityState === "hidden") setTimeout(paint, 500);
    else if (this.rest > 0) setTimeout(() => requestAnimationFrame(paint), this.rest);
    else requestAnimationFrame(paint);
  }

  paint() {
    const began = performance.now();
    const first = this.turns.find((turn) => turn.unended)?.run ?? null;
    const dirty = [...this.dirty];
    this.dirty.clear();
    for (const run of dirty) {
      if (!run.ended && began < run.replayUntil && began - run.heardAt < REPLAY_GAP_MS) this.dirty.add(run);
      else this.byId.get(run.id)?.paint(run !== first);
    }
    if (this.follower.following) this.follower.toEnd(); // lays out here, so that its time is measured
    const took = performance.now() - began;
    this.rest = took > SLOW_MS ? took * 3 : 0;
    this.schedule();
  }

  // ── nothing to show ──

  say(what) {
    this.blank.hidden = what === null;
    if (what === null) return;
    const [title, text, chips, button] = this.blank.children;
    setText(title, what.title);
    title.hidden = what.title === "";
    setText(text, what.text);
    text.hidden = what.text === "";
    chips.hidden = !what.chips;
    button.hidden = !what.retry;
    setText(button, t("thread.retry"));
    button.onclick = () => this.loadNewest();
    if (what.chips) {
      chips.setAttribute("aria-label", t("empty.demo"));
      chips.replaceChildren(
        ...what.chips.map((words) => {
          const chip = document.createElement("button");
          chip.type = "button";
          chip.className = "button";
          chip.textContent = words;
          chip.addEventListener("click", () => this.send(words, "enqueue"));
          return chip;
        }),
      );
    }
  }

  showBlank() {
    if (this.turns.length) return this.say(null);
    if (this.missing) return this.say({ title: t("thread.missing"), text: t("thread.missing_next") });
    const { agents, demo } = this.demo();
    if (agents === 0) return this.say({ title: t("empty.title"), text: t("empty.no_agent") });
    return this.say({ title: t("empty.title"), text: t("empty.text"), chips: demo ? ["markdown", "long", "slow", "fail"] : null });
  }
}
