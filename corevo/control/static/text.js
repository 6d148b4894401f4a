// Text that arrives in pieces, each with its place. Places count characters (code points), strings count UTF-16 units.

const SURROGATE = /[\ud800-\udfff]/;

export function characters(text) {
  if (!SURROGATE.test(text)) return text.length;
  let n = 0;
  for (const _ of text) n += 1;
  return n;
}

function offsetOf(text, place) {
  if (!SURROGATE.test(text)) return place;
  let offset = 0;
  for (let n = 0; n < place && offset < text.length; n += 1) offset += text.codePointAt(offset) > 0xffff ? 2 : 1;
  return offset;
}

export class PlacedText {
  constructor() {
    this.reset();
  }

  reset(text = "") {
    this.text = text;
    this.length = characters(text);
    this.age = (this.age ?? 0) + 1; // grows when something that was there may have gone
  }

  place(text, at) {
    if (at < this.length) this.reset(this.text.slice(0, offsetOf(this.text, at)));
    this.text += text;
    this.length += characters(text);
  }
}

/**
 * Paints growing text into an element: only what is new, in blocks that end with a line, so that old ones stay as they
 * are. A paragraph without end is cut between two words, because each paint lays out its block anew.
 */
export class GrowingText {
  static BLOCK = 1_500;
  static PARAGRAPH = 12_000;

  constructor(element) {
    this.element = element;
    this.clear();
  }

  clear() {
    this.element.replaceChildren();
    this.block = null;
    this.inBlock = 0;
    this.painted = 0;
    this.age = null;
  }

  paint(placed) {
    if (placed.age !== this.age) {
      this.clear();
      this.age = placed.age;
    }
    let rest = placed.text.slice(this.painted);
    this.painted = placed.text.length;
    this.element.classList.toggle("large", this.painted > 30_000);
    while (rest) {
      if (this.block === null) {
        this.block = this.element.appendChild(document.createElement("div"));
        this.inBlock = 0;
      }
      const enough = Math.max(GrowingText.BLOCK - this.inBlock, 0);
      const most = Math.max(GrowingText.PARAGRAPH - this.inBlock, 0);
      let end = rest.length > enough ? rest.indexOf("\n", enough) + 1 : 0;
      if ((end === 0 || end > most) && rest.length > most) end = rest.indexOf(" ", most) + 1 || end;
      const piece = end > 0 ? rest.slice(0, end) : rest;
      this.block.append(piece);
      this.inBlock += piece.length;
      rest = rest.slice(piece.length);
      if (end > 0) this.block = null;
    }
  }
}
