// Elements in one call, and the small things that are done to them.

export const $ = (id) => document.getElementById(id);

/** h("p", { class: "note", onclick }, "text", child …): text is text, never markup. */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "class") element.className = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

const SVG = "http://www.w3.org/2000/svg";

export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("class", "icon");
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("aria-hidden", "true");
  const use = document.createElementNS(SVG, "use");
  use.setAttribute("href", `#i-${name}`);
  svg.append(use);
  return svg;
}

/** A button that is a picture; its name is for the tooltip and for those who hear it. */
export function iconButton(name, label, onclick) {
  return h("button", { type: "button", class: "plain", "aria-label": label, title: label, onclick }, icon(name));
}

export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Sets text to be read aloud; the same words twice are read twice. */
export function announce(text) {
  const place = $("announcer");
  place.textContent = place.textContent === text ? `${text}\u00a0` : text;
}

export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const field = h("textarea", { class: "quiet", "aria-hidden": "true", tabindex: "-1" });
    field.value = text; // without HTTPS there is no clipboard to write to
    document.body.append(field);
    const focused = document.activeElement;
    field.select();
    const done = document.execCommand("copy");
    field.remove();
    focused?.focus();
    return done;
  }
}

/** What is kept in this tab or this browser; a browser that keeps nothing is no reason to fail. */
export function store(where) {
  return {
    get(name) {
      try {
        return where().getItem(`corevo.${name}`);
      } catch {
        return null;
      }
    },
    set(name, value) {
      try {
        if (value === null || value === "") where().removeItem(`corevo.${name}`);
        else where().setItem(`corevo.${name}`, value);
      } catch {
        // full, or not allowed
      }
    },
  };
}

export const tab = store(() => sessionStorage);
export const browser = store(() => localStorage);
