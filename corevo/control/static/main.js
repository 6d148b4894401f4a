// The page put together: addresses, the parts and what they tell each other, shortcuts, the drawer.

import { api } from "./api.js";
import { Composer } from "./composer.js";
import { Connection } from "./socket.js";
import { Conversation } from "./conversation.js";
import { $, announce, setText } from "./dom.js";
import { Outbox } from "./outbox.js";
import { Follower } from "./scroll.js";
import { Sync } from "./sync.js";
import { Threads } from "./threads.js";
import { t } from "./words.js";

const AGENTS_MS = 30_000;
/** A connection that is back before this was never missed. */
const BANNER_MS = 1_200;
const APP = "Corevo";

let agents = null; // null until they were read
let agentsAt = 0;

const threads = new Threads({
  onOpen: (id) => go(id),
  onChanged: (thread) => {
    if (thread.id === conversation.threadId) entitle(thread);
    sync.changed();
  },
  onDeleted: (id) => {
    sync.changed();
    // the page may have heard of it already, and keep nothing but the address
    if (id === conversation.threadId || location.pathname === `/t/${id}`) go(null, { focus: false });
  },
});

const composer = new Composer({
  onSend: (text, onBusy) => conversation.send(text, onBusy),
  onStop: () => conversation.stop(),
  onEditLast: () => {
    const last = conversation.turns.findLast((turn) => turn.asked !== null);
    if (last) composer.edit(last.asked);
    return Boolean(last);
  },
});

const follower = new Follower($("scroller"), $("content"), $("newest"), () => conversation.toNewest());
const outbox = new Outbox();

const connection = new Connection({
  onOpen: () => conversation.connected(),
  onFrame: (frame) => conversation.frame(frame),
  onState: (state) => banner.show(state),
});

const conversation = new Conversation({
  connection,
  outbox,
  follower,
  edit: (text, turn) => {
    if (turn.sending) conversation.discard(turn);
    composer.edit(text);
  },
  agent: () => composer.agent,
  demo: () => ({ agents: agents?.length ?? 1, demo: Boolean(agents?.some((agent) => agent.name === "demo")) }),
  onBlank: () => entitle({ title: "" }),
  onThread: (thread) => {
    if (thread.id !== threads.openId) {
      // a new conversation got its id
      history.replaceState(null, "", `/t/${thread.id}`);
      threads.select(thread.id);
      composer.named(thread.id);
    }
    if (thread.title !== undefined) entitle(thread);
    if (thread.agent) composer.prefer(thread.agent);
    if (thread.unread) seen();
  },
  onChange: (changed) => {
    composer.setBusy(conversation.busy, conversation.stopping);
    if (changed) sync.changed();
  },
});

const sync = new Sync(async () => {
  const before = JSON.stringify([...threads.known.values()]);
  const [items] = await Promise.all([threads.refresh(), readAgents()]);
  const id = conversation.threadId;
  if (id !== null) {
    let thread = items?.find((item) => item.id === id);
    if (thread === undefined) {
      try {
        thread = await api("GET", `/api/threads/${id}`); // an old one, or one that the search does not find
      } catch (problem) {
        if (problem.code === "not_found" && conversation.thread !== null) conversation.gone();
      }
    }
    if (thread !== undefined) await conversation.look(thread);
  }
  return JSON.stringify([...threads.known.values()]) !== before;
});

// ── addresses ──

function addressed() {
  return /^\/t\/([\w-]+)$/.exec(location.pathname)?.[1] ?? null;
}

function go(id, { push = true, focus = true } = {}) {
  if (push && addressed() !== id) history.pushState(null, "", id === null ? "/" : `/t/${id}`);
  drawer.close();
  if (id !== null && id === conversation.threadId) return;
  threads.select(id);
  entitle(threads.get(id) ?? { title: "" });
  composer.open(id);
  composer.prefer(threads.get(id)?.agent ?? null);
  conversation.open(id);
  if (focus && matchMedia("(hover: hover)").matches) $("text").focus();
}

function entitle(thread) {
  const title = conversation.threadId === null && !thread.id ? "" : thread.title || "";
  setText($("title"), title || t("threads.new"));
  document.title = title ? `${title} · ${APP}` : APP;
}

async function seen() {
  const id = conversation.threadId;
  if (id === null || document.visibilityState !== "visible") return;
  try {
    threads.meet(await api("PATCH", `/api/threads/${id}`, { unread: false }));
  } catch {
    // the next look
  }
}

// ── agents ──

async function readAgents() {
  if (Date.now() - agentsAt < (agents?.length ? AGENTS_MS : 0)) return;
  const found = (await api("GET", "/api/agents")).items;
  agentsAt = Date.now();
  const news = JSON.stringify(found) !== JSON.stringify(agents);
  agents = found;
  $("demo").hidden = !found.some((agent) => agent.name === "demo");
  composer.setAgents(found);
  if (news && conversation.threadId === null) conversation.showBlank();
}

// ── the connection's banner ──

const banner = {
  place: $("connection"),
  timer: null,
  ticker: null,
  show(state) {
    clearTimeout(this.timer);
    clearInterval(this.ticker);
    if (state === "open") {
      if (!this.place.hidden) announce(t("connection.back"));
      this.place.hidden = true;
      sync.now();
      return;
    }
    conversation.showPending();
    const until = Date.now() + (state.wait_ms ?? 0);
    const words = () => {
      const left = Math.ceil((until - Date.now()) / 1000);
      if (state === "offline") return t("connection.offline");
      if (state.restart) return t("connection.restart");
      return left > 1 ? t("connection.lost_in", { n: left }) : t("connection.lost");
    };
    const paint = () => {
      if (this.place.hidden) announce(words()); // once: a countdown is not read aloud
      setText(this.place.querySelector("span"), words());
      this.place.querySelector("button").hidden = state === "offline";
      this.place.hidden = false;
    };
    if (!this.place.hidden || state === "offline") paint();
    else this.timer = setTimeout(paint, BANNER_MS);
    this.ticker = setInterval(() => !this.place.hidden && paint(), 1_000);
  },
};
banner.place.querySelector("button").addEventListener("click", () => connection.retry());

// ── the drawer of narrow pages ──

const drawer = {
  place: $("drawer"),
  open() {
    this.place.classList.add("open");
    $("scrim").hidden = false;
    $("drawer-open").setAttribute("aria-expanded", "true");
    document.querySelector(".stage").inert = true;
    $("drawer-close").focus();
  },
  close(focus = false) {
    if (!this.place.classList.contains("open")) return;
    this.place.classList.remove("open");
    $("scrim").hidden = true;
    $("drawer-open").setAttribute("aria-expanded", "false");
    document.querySelector(".stage").inert = false;
    if (focus) $("drawer-open").focus();
  },
};
$("drawer-open").addEventListener("click", () => drawer.open());
$("drawer-close").addEventListener("click", () => drawer.close(true));
$("scrim").addEventListener("click", () => drawer.close(true));
drawer.place.addEventListener("keydown", (key) => key.key === "Escape" && !key.defaultPrevented && drawer.close(true));

// ── shortcuts ──

const help = $("help");
$("help-open").addEventListener("click", () => help.showModal());
if (/Mac|iPhone|iPad/.test(navigator.platform)) {
  for (const key of help.querySelectorAll("kbd")) if (key.textContent === "Ctrl") key.textContent = "⌘";
}

document.addEventListener("keydown", (key) => {
  if (!(key.ctrlKey || key.metaKey) || key.altKey || document.querySelector("dialog[open]")) return;
  const name = key.key.toLowerCase();
  if (name === "k") {
    if (getComputedStyle(drawer.place).position === "fixed") drawer.open();
    $("search").focus();
    $("search").select();
  } else if (name === "o" && key.shiftKey) {
    go(null);
  } else if (name === ".") {
    composer.stop();
  } else if (name === "/") {
    help.showModal();
  } else {
    return;
  }
  key.preventDefault();
});

for (const link of document.querySelectorAll("[data-new]")) {
  link.addEventListener("click", (click) => {
    if (click.ctrlKey || click.metaKey || click.shiftKey || click.button) return;
    click.preventDefault();
    go(null);
  });
}

addEventListener("popstate", () => go(addressed(), { push: false, focus: false }));
document.addEventListener("visibilitychange", () => threads.get(conversation.threadId)?.unread && seen());

// ── begin ──

threads.select(addressed());
composer.open(addressed());
connection.connect();
conversation.open(addressed());
sync.now();
