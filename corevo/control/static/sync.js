// Keeps pages in agreement: a look at the list every few seconds while the page is visible, less often while nothing
// changes, and at once when another tab of this browser says that something did.

const SOON_MS = 3_000;
const LATE_MS = 8_000;
const HINT_MS = 150;

export class Sync {
  /** `look` reads; it returns whether anything was new. */
  constructor(look) {
    this.look = look;
    this.pause = SOON_MS;
    this.timer = null;
    this.busy = false;
    this.again = false;
    this.channel = "BroadcastChannel" in window ? new BroadcastChannel("corevo") : null;
    if (this.channel) this.channel.onmessage = () => this.soon();
    document.addEventListener("visibilitychange", () => document.visibilityState === "visible" && this.now());
    addEventListener("focus", () => this.soon());
    addEventListener("online", () => this.now());
  }

  /** Something changed here: tell the other tabs, and read it back. */
  changed() {
    this.channel?.postMessage("changed");
    this.soon();
  }

  soon() {
    this.pause = SOON_MS;
    this.plan(HINT_MS);
  }

  plan(wait) {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.now(), wait);
  }

  async now() {
    clearTimeout(this.timer);
    if (this.busy) {
      this.again = true;
      return;
    }
    this.busy = true;
    let news = false;
    try {
      if (document.visibilityState === "visible") news = await this.look();
    } catch {
      // away: the connection's banner says so
    }
    this.busy = false;
    this.pause = news ? SOON_MS : Math.min(this.pause * 1.15, LATE_MS);
    this.plan(this.again ? HINT_MS : this.pause);
    this.again = false;
  }
}
