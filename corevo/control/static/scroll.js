// Stays at the end while things grow, unless the reader went up; then a button leads back.

const NEAR_PX = 48;
const FAR_PX = 240;

export class Follower {
  constructor(scroller, content, button, onJump) {
    this.scroller = scroller;
    this.content = content;
    this.button = button;
    this.following = true;
    this.detached = false; // the newest messages are not in the page
    this.lastTop = 0;
    this.lastHeight = 0;
    scroller.addEventListener("scroll", () => this.onScroll(), { passive: true });
    scroller.addEventListener("wheel", (wheel) => wheel.deltaY < 0 && this.release(), { passive: true });
    new ResizeObserver(() => this.settle()).observe(content);
    new ResizeObserver(() => this.settle()).observe(scroller);
    button.addEventListener("click", () => onJump());
  }

  get gap() {
    return this.scroller.scrollHeight - this.scroller.scrollTop - this.scroller.clientHeight;
  }

  onScroll() {
    const { scrollTop, scrollHeight } = this.scroller;
    // content that shrank moves the reader up too: that is not the reader
    if (scrollTop < this.lastTop - 1 && scrollHeight >= this.lastHeight && this.gap > NEAR_PX) this.following = false;
    else if (this.gap <= NEAR_PX && !this.detached) this.following = true;
    this.note();
  }

  release() {
    if (this.scroller.scrollTop > 0) this.following = false;
    this.note();
  }

  settle() {
    if (this.following) this.toEnd();
    else this.note();
  }

  toEnd() {
    this.following = true;
    this.scroller.scrollTop = this.scroller.scrollHeight;
    this.note();
  }

  note() {
    this.lastTop = this.scroller.scrollTop;
    this.lastHeight = this.scroller.scrollHeight;
    this.button.hidden = this.following || (!this.detached && this.gap < FAR_PX);
  }

  /** Changes what is above the reader without moving what he reads. */
  holding(reference, change) {
    const before = reference?.getBoundingClientRect().top;
    this.scroller.style.overflowAnchor = "none";
    change();
    if (reference?.isConnected) {
      const moved = reference.getBoundingClientRect().top - before;
      if (Math.abs(moved) >= 1) this.scroller.scrollTop += moved;
    }
    this.scroller.style.overflowAnchor = "";
    this.note();
  }
}
