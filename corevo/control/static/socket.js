// One WebSocket that comes back: with growing, jittered pauses, when the network does, when the machine wakes up, and
// when a server that says good-bye wishes. What is said on it is not this file's business.

const PROTOCOL = "corevo.v1";
const FIRST_MS = 400;
const MOST_MS = 15_000;
const OPENING_MS = 10_000;
/** The server says something at least every 20 s. */
const SILENCE_MS = 45_000;
const PROBE_MS = 4_000;
/** A connection that lived shorter than this is no sign that all is well. */
const STEADY_MS = 3_000;

export class Connection {
  /** onState gets "open", "offline", or { wait_ms, restart }. */
  constructor({ onOpen, onFrame, onState }) {
    this.onOpen = onOpen;
    this.onFrame = onFrame;
    this.onState = onState;
    this.socket = null;
    this.timer = null;
    this.failures = 0;
    this.wish = null; // of a server that said good-bye
    this.heardAt = 0;
    addEventListener("online", () => this.retry());
    addEventListener("offline", () => this.lose());
    addEventListener("pageshow", (shown) => shown.persisted && this.probe());
    document.addEventListener("visibilitychange", () => document.visibilityState === "visible" && this.probe());
    document.addEventListener("resume", () => this.probe());
    setInterval(() => this.watch(), 5_000);
  }

  get open() {
    return this.socket?.readyState === WebSocket.OPEN;
  }

  transmit(frame) {
    if (!this.open) return false;
    this.socket.send(JSON.stringify(frame));
    return true;
  }

  connect() {
    clearTimeout(this.timer);
    this.timer = null;
    if (navigator.onLine === false) {
      this.onState("offline");
      return;
    }
    const scheme = location.protocol === "https:" ? "wss:" : "ws:";
    const socket = new WebSocket(`${scheme}//${location.host}/api/ws`, PROTOCOL);
    const opening = setTimeout(() => this.socket === socket && this.lose(), OPENING_MS);
    let openedAt = null;
    this.socket = socket;
    socket.onopen = () => {
      clearTimeout(opening);
      openedAt = this.heardAt = Date.now();
      this.onState("open");
      this.onOpen();
    };
    socket.onmessage = (message) => {
      this.heardAt = Date.now();
      const frame = JSON.parse(message.data);
      if (frame.ev === "bye") this.wish = frame.retry_in_ms;
      else if (frame.ev !== "ping" && frame.ev !== "pong") this.onFrame(frame);
    };
    socket.onclose = () => {
      clearTimeout(opening);
      if (openedAt !== null && Date.now() - openedAt > STEADY_MS) this.failures = 0;
      if (this.socket === socket) this.wait();
    };
  }

  /** Lets go of a socket that may never say that it is closed. */
  lose() {
    const socket = this.socket;
    this.socket = null;
    if (socket !== null) {
      socket.onopen = socket.onmessage = socket.onclose = null;
      socket.close();
    }
    this.wait();
  }

  wait() {
    this.socket = null;
    clearTimeout(this.timer);
    if (navigator.onLine === false) {
      this.onState("offline");
      return;
    }
    const restart = this.wish !== null;
    const most = Math.min(FIRST_MS * 1.8 ** this.failures, MOST_MS);
    const pause = restart ? this.wish : most * (0.5 + Math.random() / 2);
    this.wish = null;
    this.failures += 1;
    this.onState({ wait_ms: pause, restart });
    this.timer = setTimeout(() => this.connect(), pause);
  }

  /** Now, whatever was planned; does nothing when a socket is there. */
  retry() {
    if (this.socket === null) this.connect();
  }

  /** After a sleep a socket may look open and be dead: ask it. */
  probe() {
    if (this.socket === null) {
      this.connect();
    } else if (this.open && Date.now() - this.heardAt > 1_000) {
      const socket = this.socket;
      const asked = Date.now();
      this.transmit({ op: "ping" });
      setTimeout(() => {
        if (this.socket === socket && this.heardAt < asked) this.lose();
      }, PROBE_MS);
    }
  }

  watch() {
    if (this.open && Date.now() - this.heardAt > SILENCE_MS) this.lose();
  }
}
