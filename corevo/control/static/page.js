// The bare page: one thread, one socket. A lost socket comes back with the cursor of what was seen.

const PROTOCOL = "corevo.v1";
const TERMINAL = new Set(["completed", "failed", "cancelled", "interrupted", "timed_out", "lost"].map((s) => `run.${s}`));
const UNENDED = new Set(["queued", "running"]);

const $ = (id) => document.getElementById(id);
const pending = new Map(); // ref → the send that has no answer yet; sent again with the same key after a reconnect
let socket = null;
let wait = 500;
let thread = null;
let current = null; // {id, cursor, text, element}

function connect() {
  const scheme = location.protocol === "https:" ? "wss:" : "ws:";
  socket = new WebSocket(`${scheme}//${location.host}/api/ws`, PROTOCOL);
  socket.onopen = () => {
    wait = 500;
    say("");
    if (current) transmit({ op: "attach", ref: "again", job_id: current.id, after: current.cursor ?? undefined });
    for (const frame of pending.values()) transmit(frame);
  };
  socket.onmessage = (message) => receive(JSON.parse(message.data));
  socket.onclose = () => {
    say("Connection lost, coming back …");
    setTimeout(connect, wait * (0.5 + Math.random()));
    wait = Math.min(wait * 2, 10000);
  };
}

function transmit(frame) {
  if (socket.readyState === WebSocket.OPEN) socket.send(JSON.stringify(frame));
}

function receive(frame) {
  if (frame.ev === "ack" && frame.ref !== "again") acknowledge(frame);
  else if (frame.ev === "error") refuse(frame);
  else if (frame.ev === "event" && current?.id === frame.job_id) event(frame);
  else if (frame.ev === "reset" && current?.id === frame.job_id) Object.assign(current, { text: "", cursor: null });
  else if (frame.ev === "job" && current?.id === frame.job.id) job(frame.job);
  else if (frame.ev === "bye") wait = frame.retry_in_ms;
}

function acknowledge(frame) {
  if (!pending.delete(frame.ref) || !frame.job) return;
  thread = frame.job.thread_id;
  if (current?.id === frame.job.id) return;
  current = { id: frame.job.id, cursor: null, text: "", element: article("assistant", "") };
  job(frame.job);
}

function event(frame) {
  const end = TERMINAL.has(frame.type) ? ":end" : "";
  current.cursor = `${frame.execution_id}:${frame.seq}${end}`;
  if (frame.type === "run.started") current.text = "";
  if (frame.type === "text.delta") current.text = Array.from(current.text).slice(0, frame.data.at).join("") + frame.data.text;
  if (frame.type === "text.done") current.text = frame.data.text;
  if (frame.type === "status") say(frame.data.text);
  current.element.textContent = current.text;
  current.element.scrollIntoView({ block: "end" });
}

function job(view) {
  const running = UNENDED.has(view.state);
  $("stop").disabled = !running;
  if (view.state === "completed") say("");
  else if (view.state === "queued" && view.queue_position) say(`queued, place ${view.queue_position}`);
  else say(view.state.replace("_", " ") + (view.error ? `: ${view.error.message}` : ""));
  if (!running) current = null;
}

function refuse(frame) {
  if (frame.ref === "again") current = null;
  else pending.delete(frame.ref);
  say(frame.detail);
}

function article(role, text) {
  const element = document.createElement("article");
  element.className = role;
  element.textContent = text;
  $("messages").append(element);
  return element;
}

function say(text) {
  $("state").textContent = text;
}

$("composer").addEventListener("submit", (submit) => {
  submit.preventDefault();
  const text = $("text").value;
  if (!text) return;
  $("text").value = "";
  article("user", text);
  const key = Array.from(crypto.getRandomValues(new Uint8Array(16)), (b) => b.toString(16).padStart(2, "0")).join("");
  const frame = { op: "send", ref: key, text, idempotency_key: key };
  if (thread) frame.thread_id = thread;
  pending.set(key, frame);
  transmit(frame);
});

$("stop").addEventListener("click", () => {
  if (current) transmit({ op: "cancel", ref: "stop", job_id: current.id });
});

fetch("/api/agents")
  .then((answer) => answer.json())
  .then((agents) => ($("demo").hidden = !agents.items?.some((agent) => agent.name === "demo")))
  .catch(() => {});

connect();
