// The body of a message as text, JSON or hex.

import { clear, h } from "./dom.js";
import * as format from "./format.js";
import { t } from "./i18n.js";

// `bytes` is a Uint8Array (see fromBase64), `size` how long the whole body is when only its beginning is here.
export function viewer(bytes, { size = bytes.length } = {}) {
  const text = asText(bytes);
  const pretty = size === bytes.length && text !== null ? indented(text) : null;
  const views = {
    text: text === null ? null : () => h("pre", { tabindex: "0" }, text),
    json: pretty === null ? null : () => h("pre", { tabindex: "0" }, pretty),
    hex: () => h("pre", { class: "hex", tabindex: "0" }, hexdump(bytes)),
  };
  const names = Object.keys(views).filter((name) => views[name] !== null);
  const place = h("div", { role: "tabpanel" });
  const buttons = names.map((name) => h("button", { type: "button", role: "tab", onclick: () => select(name) }, t(`viewer.${name}`)));
  function select(name) {
    buttons.forEach((button, i) => button.setAttribute("aria-selected", String(names[i] === name)));
    clear(place, bytes.length ? views[name]() : h("div", { class: "empty" }, t("viewer.empty")));
  }
  select(pretty !== null ? "json" : names[0]);
  const cut = size > bytes.length ? t("viewer.cut", { shown: format.bytes(bytes.length), all: format.bytes(size) }) : format.bytes(size);
  return h("div", { class: "viewer" }, h("div", { class: "tabs", role: "tablist" }, buttons), place, h("p", { class: "muted small" }, cut));
}

export function fromBase64(text) {
  return Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
}

function asText(bytes) {
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
    // Control characters other than white space: not a text.
    return /[\u0000-\u0008\u000b\u000c\u000e-\u001f]/.test(text) ? null : text;
  } catch {
    return null;
  }
}

// JSON with line breaks. The tokens stay as they are, so that large numbers keep all their digits; null when it is not an object or array.
export function indented(text) {
  const trimmed = text.trim();
  if (!/^[[{]/.test(trimmed)) return null;
  try {
    JSON.parse(trimmed);
  } catch {
    return null;
  }
  let depth = 0;
  let made = "";
  const tokens = trimmed.match(/"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/g) ?? [];
  tokens.forEach((token, i) => {
    if (token === "{" || token === "[") {
      const closes = tokens[i + 1] === "}" || tokens[i + 1] === "]";
      depth += 1;
      made += closes ? token : `${token}\n${"  ".repeat(depth)}`;
    } else if (token === "}" || token === "]") {
      depth -= 1;
      made += tokens[i - 1] === "{" || tokens[i - 1] === "[" ? token : `\n${"  ".repeat(depth)}${token}`;
    } else if (token === ",") made += `,\n${"  ".repeat(depth)}`;
    else made += token === ":" ? ": " : token;
  });
  return made;
}

function hexdump(bytes) {
  const lines = [];
  for (let at = 0; at < bytes.length; at += 16) {
    const row = [...bytes.subarray(at, at + 16)];
    const hex = row.map((byte) => byte.toString(16).padStart(2, "0"));
    const left = `${hex.slice(0, 8).join(" ")}  ${hex.slice(8).join(" ")}`;
    const text = row.map((byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : ".")).join("");
    lines.push(`${at.toString(16).padStart(8, "0")}  ${left.padEnd(49)} ${text}`);
  }
  return lines.join("\n");
}
