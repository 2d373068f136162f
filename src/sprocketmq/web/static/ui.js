// What pages are made of. A page imports everything from here:
//
//   import { h, t, format, get, table, errorNotice } from "../ui.js";

import { RequestFailed } from "./api.js";
import { address, clear, h, icon } from "./dom.js";
import { has, t } from "./i18n.js";

export { get, post, stream, RequestFailed } from "./api.js";
export { chart, meter, sparkline } from "./chart.js";
export { address, clear, h, icon, link, svg } from "./dom.js";
export * as format from "./format.js";
export { has, t } from "./i18n.js";
export { navigate, note } from "./router.js";
export { table } from "./table.js";
export { fromBase64, indented, viewer } from "./viewer.js";

// The title of a page and its buttons.
export function pageHead(title, { note = null, actions = [] } = {}) {
  return h("div", { class: "page-head" }, h("h1", {}, title), note, actions.length ? h("div", { class: "actions" }, actions) : null);
}

// Where a page about one thing leads back to.
export function backLink(path, query, text) {
  return h("a", { class: "back", href: address(path, query) }, icon("back"), text);
}

export function card(title, ...children) {
  return h("section", { class: "card" }, title ? h("h2", {}, title) : null, children);
}

export function stat(label, value, note = "") {
  return h("div", { class: "card stat" }, h("div", { class: "label" }, label), h("div", { class: "value" }, value), note ? h("div", { class: "note" }, note) : null);
}

// [[name, value], ...]
export function facts(pairs) {
  return h("dl", { class: "facts" }, pairs.filter(Boolean).map(([name, value]) => [h("dt", {}, name), h("dd", {}, value ?? "–")]));
}

// `level` is "", ok, warn, bad or accent.
export function badge(text, level = "") {
  return h("span", { class: `badge ${level}` }, text);
}

export function notice(level, ...children) {
  const picture = { ok: "check", warn: "warn", bad: "warn" }[level] ?? "info";
  return h("div", { class: `notice ${level}`, role: level === "bad" ? "alert" : "status" }, icon(picture), h("div", {}, children));
}

export function loading() {
  return h("div", { class: "skeleton", role: "status", "aria-label": t("state.loading") });
}

export function emptyState(text) {
  return h("div", { class: "card empty" }, text);
}

// The sentence of an error in the viewer's language where there is one, else the server's.
export function sentence(error) {
  if (!(error instanceof RequestFailed)) return String(error?.message ?? error);
  const known = `error.${error.kind}`;
  return has(known) ? t(known) : error.message;
}

export function errorNotice(error, again = null) {
  const retry = again ? h("p", {}, h("button", { type: "button", onclick: again }, icon("refresh"), t("action.again"))) : null;
  return notice("bad", h("p", {}, sentence(error)), retry);
}

// Show what `load` returns as `draw` makes it, a skeleton until then, and the error with a way to try again.
export async function load(place, request, draw) {
  clear(place, loading());
  try {
    clear(place, draw(await request()));
  } catch (error) {
    clear(place, errorNotice(error, () => load(place, request, draw)));
  }
}

let toasts = null;

// A short message in the corner; `level` as of a notice.
export function toast(text, level = "ok") {
  if (toasts === null || !toasts.isConnected) document.body.append((toasts = h("div", { class: "toasts", "aria-live": "polite" })));
  const one = notice(level, text);
  toasts.append(one);
  setTimeout(() => one.remove(), level === "bad" ? 12000 : 5000);
}

// Run an action of a button: its error becomes a toast. Returns whether it succeeded.
export async function attempt(action, button = null) {
  if (button) button.disabled = true;
  try {
    await action();
    return true;
  } catch (error) {
    toast(sentence(error), "bad");
    return false;
  } finally {
    if (button) button.disabled = false;
  }
}

// A dialog with `content` and `buttons`; resolves with what closes it (undefined for Escape). Buttons: [{ text, value, kind, submit }], or
// with `act`: an async function that keeps the dialog open when it throws.
export function dialog({ title, content, buttons, large = false }) {
  return new Promise((resolve) => {
    let result;
    const problem = h("div", {});
    const form = h("form", { method: "dialog", class: "stack" }, content, problem);
    const row = h("div", { class: "actions" });
    form.append(row);
    const box = h("dialog", { class: large ? "large" : "", "aria-label": title }, h("h2", {}, title), form);
    let submit = null;
    for (const { text, value, kind = "", act = null, disabled = false } of buttons) {
      const button = h("button", { type: act || kind.includes("primary") ? "submit" : "button", class: kind, disabled }, text);
      const run = async (event) => {
        event?.preventDefault();
        if (button.disabled) return;
        if (act) {
          button.disabled = true;
          try {
            result = (await act()) ?? value ?? true;
          } catch (error) {
            clear(problem, errorNotice(error));
            return;
          } finally {
            button.disabled = false;
          }
        } else result = value;
        box.close();
      };
      if (button.type === "submit") submit = run;
      else button.addEventListener("click", run);
      row.append(button);
    }
    form.addEventListener("submit", (event) => submit?.(event) ?? event.preventDefault());
    box.addEventListener("close", () => {
      box.remove();
      resolve(result);
    });
    document.body.append(box);
    box.showModal();
    (box.querySelector("[autofocus], input, textarea, select") ?? row.lastElementChild)?.focus();
  });
}

// Ask before something is destroyed: the viewer types `word`. `act` runs then, and its error is shown in the dialog. Resolves to true when done.
export async function confirmTyped({ title, text, word, action, act = async () => true }) {
  const field = h("input", { autocomplete: "off", spellcheck: "false", autofocus: true, "aria-label": t("confirm.type", { word }) });
  const content = [h("div", { class: "wrap" }, text), h("label", { class: "field" }, h("span", { class: "wrap" }, t("confirm.type", { word })), field)];
  const closed = dialog({
    title,
    content,
    buttons: [
      { text: t("action.cancel"), value: false },
      { text: action ?? t("action.delete"), kind: "danger primary", disabled: true, act },
    ],
  });
  const button = field.closest("dialog").querySelector("button.danger");
  field.addEventListener("input", () => {
    button.disabled = field.value !== word;
  });
  return Boolean(await closed);
}
