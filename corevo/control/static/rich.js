// The server's HTML of an answer, put into the page: it is safe already, and gets what only a page can add.

import { announce, copy, h, icon, setText } from "./dom.js";
import { t } from "./words.js";

/** So many top-level pieces are put in at once, the next ones a frame later. */
const BATCH = 150;
const LARGE_CHARACTERS = 30_000;

export function fill(element, html) {
  const template = document.createElement("template");
  template.innerHTML = html;
  element.className = html.length > LARGE_CHARACTERS ? "rich large" : "rich";
  const pieces = [...template.content.children];
  const next = () => {
    const batch = document.createDocumentFragment();
    for (const piece of pieces.splice(0, BATCH)) batch.append(piece);
    dress(batch);
    element.append(batch);
    if (pieces.length) requestAnimationFrame(next);
  };
  element.replaceChildren();
  next();
}

function dress(root) {
  for (const pre of root.querySelectorAll("pre")) {
    const code = pre.querySelector("code");
    const language = [...(code?.classList ?? [])].find((name) => name.startsWith("language-"))?.slice(9) ?? "";
    const label = h("span", {}, t("message.code_copy"));
    const button = h("button", { type: "button", class: "plain" }, icon("copy"), label);
    button.addEventListener("click", async () => {
      const done = await copy(pre.textContent.replace(/\n$/, ""));
      said(label, done, t("message.code_copy"));
    });
    pre.tabIndex = 0; // a long line scrolls, also without a mouse
    pre.setAttribute("role", "region");
    pre.setAttribute("aria-label", language ? `${t("message.code")}: ${language}` : t("message.code"));
    const box = h("div", { class: "code" }, h("div", { class: "code-head" }, h("span", {}, language), button));
    pre.replaceWith(box);
    box.append(pre);
  }
  for (const table of root.querySelectorAll("table")) {
    const box = h("div", { class: "table", tabindex: "0", role: "region", "aria-label": t("message.table") });
    table.replaceWith(box);
    box.append(table);
  }
}

/** Shows for a moment that something was copied. */
export function said(label, done, before) {
  setText(label, t(done ? "message.copied" : "message.copy_failed"));
  if (done) announce(t("announce.copied"));
  setTimeout(() => setText(label, before), 1_500);
}
