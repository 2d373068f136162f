// Elements. Children become text unless they are nodes, so nothing that comes from the cluster is ever parsed as HTML.

const SVG = "http://www.w3.org/2000/svg";

// h("button", { class: "primary", onclick: f, "aria-label": "x" }, "Save", icon("check"))
export function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") Object.assign(element.style, value);
    else if (name === "value") element.value = value;
    else if (name === "href") element.setAttribute(name, safeAddress(value));
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

// Links lead to pages of the dashboard only.
function safeAddress(address) {
  const text = String(address);
  return /^(\/(?!\/)|#|\?)/.test(text) ? text : "#";
}

export function link(path, query, ...children) {
  return h("a", { href: address(path, query) }, ...children);
}

export function address(path, query = {}) {
  const entries = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const text = new URLSearchParams(entries).toString();
  return text ? `${path}?${text}` : path;
}

const FOCUSABLE = "a[href], button, input, select, textarea, summary, [tabindex]";

// Replace what is in `element`. Whoever works by keyboard stays on the same link, button or field when there is one like it again.
export function clear(element, ...children) {
  const focused = element.contains(document.activeElement) ? document.activeElement : null;
  element.replaceChildren(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  if (focused && document.activeElement !== focused) [...element.querySelectorAll(FOCUSABLE)].find((one) => one.isEqualNode(focused))?.focus({ preventScroll: true });
  return element;
}

const PATHS = {
  overview: "M4 13h6V4H4zM14 20h6V11h-6zM4 20h6v-3H4zM14 7h6V4h-6z",
  topics: "M4 6h16M4 12h16M4 18h10",
  groups: "M9 11a3.5 3.5 0 1 0 0-7 3.5 3.5 0 0 0 0 7zM2.5 20c0-3.5 3-5.5 6.5-5.5s6.5 2 6.5 5.5M16 4.5a3.3 3.3 0 0 1 0 6.3M18 14.8c2.2.7 3.5 2.5 3.5 5.2",
  messages: "M4 5h16v11H9l-5 4z",
  dead_letters: "M4 6h16v12H4zM4 7l8 6 8-6M9 21h6",
  traces: "M4 6h7M8 12h9M13 18h7",
  store: "M4 6c0-1.7 3.6-3 8-3s8 1.3 8 3-3.6 3-8 3-8-1.3-8-3zM4 6v12c0 1.7 3.6 3 8 3s8-1.3 8-3V6M4 12c0 1.7 3.6 3 8 3s8-1.3 8-3",
  spark: "M13 3 5 14h6l-1 7 8-11h-6z",
  menu: "M4 7h16M4 12h16M4 17h16",
  close: "M6 6l12 12M18 6 6 18",
  check: "M5 12.5 10 17.5 19 7",
  warn: "M12 4 2.8 19.5h18.4zM12 10v4.5M12 17v.2",
  info: "M12 21a9 9 0 1 0 0-18 9 9 0 0 0 0 18zM12 11v5M12 8v.2",
  theme: "M12 3a9 9 0 1 0 9 9c-4 1.5-9-2-9-9z",
  language: "M4 5h9M8.5 3v2M6 5c.5 4 3.500 7 6.500 8M11 5c-.5 4-3 7-6.500 8M12.500 20 16.500 10 20.500 20M14 16.500h5",
  logout: "M9 4H5v16h4M14 8l4 4-4 4M18 12H9",
  refresh: "M20 12a8 8 0 1 1-2.500-5.800M20 4v4.500h-4.500",
  plus: "M12 5v14M5 12h14",
  trash: "M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13",
  back: "M14 6l-6 6 6 6",
  play: "M7 5l12 7-12 7z",
  pause: "M8 5v14M16 5v14",
  search: "M11 18a7 7 0 1 0 0-14 7 7 0 0 0 0 14zM16 16l5 5",
};

export function icon(name) {
  return svg("svg", { class: "icon", viewBox: "0 0 24 24", "aria-hidden": "true" }, svg("path", { d: PATHS[name] ?? PATHS.info }));
}
