// What pages ask for again while they are open, and figures of table rows, which are asked for only while the rows can be seen.

import { post, sentence } from "./ui.js";
import { clear, h } from "./dom.js";
import { t } from "./i18n.js";

const AT_ONCE = 50;

// Run `action` each `everyMs` while the page is open and its tab is shown, from now on: the page has shown its first answer. It never runs
// twice at a time, and ends when it returns false.
export function poll(context, action, everyMs) {
  let timer = 0;
  let ended = false;
  async function run() {
    clearTimeout(timer);
    if (ended) return;
    if (!document.hidden) {
      try {
        if ((await action()) === false) ended = true;
        context.live(ended ? "waiting" : "open");
      } catch {
        context.live("lost");
      }
    }
    if (!ended) timer = setTimeout(run, everyMs);
  }
  const seen = () => {
    if (!document.hidden && !ended) run();
  };
  context.onLeave(() => {
    ended = true;
    clearTimeout(timer);
    document.removeEventListener("visibilitychange", seen);
  });
  timer = setTimeout(run, everyMs);
  context.live("open");
  document.addEventListener("visibilitychange", seen);
}

// Figures by name from `path`, whose answer has them under `field`.
//
//   const figures = figureCells(context, "/api/topics/figures", "topics");
//   render: (row) => figures.cell(row.name, (found) => format.rate(found.rate))
export function figureCells(context, path, field, everyMs = 10000) {
  const known = new Map();
  const cells = new Map(); // name -> [{ node, draw }]
  let timer = 0;
  let busy = false;
  let ended = false;

  function soon(ms) {
    clearTimeout(timer);
    if (!ended) timer = setTimeout(run, ms);
  }
  function show(name, one) {
    const found = known.get(name);
    if (found === undefined) clear(one.node, h("span", { class: "muted" }, "…"));
    else clear(one.node, found.failed ? unknown(found.failed) : one.draw(found));
  }
  function visible(node) {
    const place = node.getBoundingClientRect();
    const box = node.closest(".table-box")?.getBoundingClientRect();
    return place.bottom > Math.max(0, box?.top ?? 0) && place.top < Math.min(window.innerHeight, box?.bottom ?? window.innerHeight);
  }
  async function ask(names) {
    for (let first = 0; first < names.length && !ended; first += AT_ONCE) {
      const part = names.slice(first, first + AT_ONCE);
      let found;
      try {
        found = (await post(path, { names: part }))[field];
      } catch (error) {
        found = Object.fromEntries(part.map((name) => [name, { failed: sentence(error) }]));
      }
      for (const name of part) {
        known.set(name, found[name] ?? { failed: "" });
        for (const one of cells.get(name) ?? []) show(name, one);
      }
    }
  }
  async function run() {
    if (busy || document.hidden) return soon(everyMs);
    busy = true;
    const names = [];
    for (const [name, list] of cells) {
      const left = list.filter((one) => one.node.isConnected);
      if (left.length) cells.set(name, left);
      else cells.delete(name);
      if (left.some((one) => visible(one.node))) names.push(name);
    }
    await ask(names);
    busy = false;
    soon(everyMs);
  }
  // Rows that scroll into sight get theirs soon, and not each on the way.
  const scrolled = () => soon(200);
  document.addEventListener("scroll", scrolled, { capture: true, passive: true });
  context.onLeave(() => {
    ended = true;
    clearTimeout(timer);
    document.removeEventListener("scroll", scrolled, { capture: true });
  });

  return {
    known: (name) => {
      const found = known.get(name);
      return found?.failed === undefined ? found : undefined;
    },
    cell(name, draw) {
      const one = { node: h("span", {}), draw };
      const list = cells.get(name) ?? [];
      if (list.length > 40) cells.set(name, list.filter((old) => old.node.isConnected));
      (cells.get(name) ?? cells.set(name, []).get(name)).push(one);
      show(name, one);
      if (!known.has(name) && !busy) soon(60);
      else if (!known.has(name)) setTimeout(() => soon(60), 500);
      return one.node;
    },
    // Ask for the figures of all these names, for sorting by them.
    async all(names, progress = () => {}) {
      for (let first = 0; first < names.length && !ended; first += AT_ONCE) {
        await ask(names.slice(first, first + AT_ONCE));
        progress(Math.min(first + AT_ONCE, names.length));
      }
    },
    refresh: () => soon(0),
  };
}

// A figure that nobody told; the reason is read out, and shown under the pointer.
export function unknown(reason) {
  return h("span", { class: "muted unknown", title: reason || null, "aria-label": reason ? `${t("state.unknown")}: ${reason}` : null }, t("state.unknown"));
}

// Brokers that did not tell, and why: { broker: reason }.
export function reasons(missing) {
  return Object.entries(missing ?? {}).map(([broker, reason]) => (broker ? `${broker}: ${reason}` : reason));
}
