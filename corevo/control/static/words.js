// The page's words, from the same catalogue as the template.

import { $ } from "./dom.js";

const words = JSON.parse($("words").textContent);
export const settings = JSON.parse($("settings").textContent);

const ordinal = new Intl.PluralRules(settings.language, { type: "ordinal" });
const cardinal = new Intl.PluralRules(settings.language);
const number = new Intl.NumberFormat(settings.language);
const money = new Intl.NumberFormat(settings.language, { style: "currency", currency: "USD", maximumSignificantDigits: 3 });

export function t(name, values = {}) {
  const text = words[name] ?? name;
  return text.replace(/\{(\w+)\}/g, (_, key) => (typeof values[key] === "number" ? number.format(values[key]) : (values[key] ?? "")));
}

export const knows = (name) => name in words;

export const dollars = (amount) => money.format(amount);

/** A count in words; `name` has the forms .one and .other. */
export function counted(name, n) {
  return t(`${name}.${cardinal.select(n) === "one" ? "one" : "other"}`, { n });
}

export function placeInLine(n) {
  return n === 1 ? t("state.queued_next") : t(`state.queued_place.${ordinal.select(n)}`, { n });
}

/** What a refusal means, by its code. */
export function refusal(code, detail) {
  return knows(`refused.${code}`) ? t(`refused.${code}`, { detail }) : t("refused.other", { detail: detail || code });
}

/** How an answer ended: what to say, how loudly, and whether to offer the same again. Null when there is nothing to say. */
export function ending(state, error) {
  const code = error?.code;
  switch (state) {
    case "completed":
      return null;
    case "cancelled":
      return { words: t(code === "replaced" ? "state.replaced" : "state.cancelled"), tone: "calm", again: false };
    case "failed": {
      const plain = !error?.message || error.message === code?.replaceAll("_", " ");
      let said = plain ? t("state.failed_plain") : t("state.failed", { detail: error.message });
      if (plain && knows(`state.failed_${code}`)) said = t(`state.failed_${code}`);
      return { words: said, tone: "bad", again: true };
    }
    default:
      return { words: knows(`state.${state}`) ? t(`state.${state}`) : state, tone: "warn", again: true };
  }
}
