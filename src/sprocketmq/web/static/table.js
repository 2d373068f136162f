// A table with a filter, sorting, and rows that are made only while they can be seen: 10,000 rows are as quick as ten.
//
//   const topics = table({
//     columns: [
//       { key: "name", title: t("topics.name"), value: (row) => row.name, render: (row) => link(...), width: "40%" },
//       { key: "rate", title: t("topics.rate"), value: (row) => row.rate, render: (row) => format.rate(row.rate), right: true },
//     ],
//     key: (row) => row.name,               // identity of a row
//     text: (row) => row.name,              // what the filter looks at; without it there is no filter
//     open: (row) => ["/topics", { topic: row.name }],   // where a click on a row leads
//     sort: ["rate", "descending"],
//     empty: t("topics.empty"),             // or a function that returns it
//   });
//   root.append(topics.element);
//   topics.update(rows);                    // keeps filter, order and position
//
// `value` is what a column is sorted by; a column without it is not sorted. `narrow: false` hides a column on phones. `tools` are nodes beside
// the filter. Columns with a `width` have it; the others share the rest.

import { address, clear, h } from "./dom.js";
import { t } from "./i18n.js";
import { navigate } from "./router.js";

const ROW_PX = 38;
const ALL_BELOW = 150; // as many rows are shown without a box that scrolls
const AHEAD = 12;
const collator = new Intl.Collator(undefined, { numeric: true });

export function table({ columns, key, text, open, sort = [], empty = "", tools = [], label = "" }) {
  let rows = [];
  let shown = [];
  let [sortKey = "", direction = "ascending"] = sort;
  let drawnFrom = -1;
  let drawnTo = -1;
  let wanted = "";
  const texts = new WeakMap();

  const narrow = window.matchMedia("(max-width: 860px)");
  const body = h("tbody");
  const heads = columns.map((column) => head(column));
  const grid = h("table", { "aria-label": label || null }, h("colgroup", {}, columns.map(col)), h("thead", {}, h("tr", {}, heads)), body);
  const box = h("div", { class: "table-box", tabindex: "-1", onscroll: () => draw() }, grid);
  const found = h("span", { class: "count", role: "status" });
  const search = h("input", { type: "search", placeholder: t("table.filter"), "aria-label": t("table.filter"), spellcheck: "false", maxlength: "300" });
  search.addEventListener("input", () => {
    wanted = search.value.trim().toLowerCase();
    box.scrollTop = 0;
    arrange();
  });
  const bar = h("div", { class: "table-tools" }, text ? search : null, found, tools);
  const element = h("div", {}, text || tools.length ? bar : null, box);

  function col(column) {
    return h("col", { class: column.narrow === false ? "wide-only" : null, style: column.width ? { width: column.width } : {} });
  }
  function cellClass(column) {
    return [column.right ? "right" : "", column.narrow === false ? "wide-only" : "", column.class ?? ""].join(" ").trim() || null;
  }
  function head(column) {
    if (!column.value) return h("th", { class: cellClass(column), scope: "col" }, column.title);
    const button = h("button", { type: "button", onclick: () => sortBy(column) }, column.title);
    return h("th", { class: cellClass(column), scope: "col" }, button);
  }
  function sortBy(column) {
    const numbers = column.right;
    if (sortKey !== column.key) [sortKey, direction] = [column.key, numbers ? "descending" : "ascending"];
    else direction = direction === "ascending" ? "descending" : "ascending";
    arrange();
  }
  function textOf(row) {
    let found = texts.get(row);
    if (found === undefined) texts.set(row, (found = String(text(row)).toLowerCase()));
    return found;
  }
  function arrange() {
    shown = wanted && text ? rows.filter((row) => textOf(row).includes(wanted)) : rows.slice();
    const column = columns.find((one) => one.key === sortKey);
    if (column?.value) {
      const keyed = shown.map((row) => [column.value(row), row]);
      const sign = direction === "ascending" ? 1 : -1;
      keyed.sort(([a], [b]) => compare(a, b, sign));
      shown = keyed.map(([, row]) => row);
    }
    columns.forEach((one, i) => heads[i].setAttribute("aria-sort", one.key === sortKey ? direction : "none"));
    found.textContent = wanted ? t("table.found", { shown: shown.length, all: rows.length }) : t("table.all", { all: rows.length });
    const tall = shown.length > ALL_BELOW;
    box.classList.toggle("tall", tall);
    grid.classList.toggle("fixed", tall);
    box.tabIndex = tall ? 0 : -1;
    grid.setAttribute("aria-rowcount", String(shown.length + 1));
    drawnFrom = -1;
    draw();
  }
  function draw() {
    const tall = shown.length > ALL_BELOW;
    const first = tall ? Math.max(0, Math.floor(box.scrollTop / ROW_PX) - AHEAD) : 0;
    const last = tall ? Math.min(shown.length, first + Math.ceil((box.clientHeight || 800) / ROW_PX) + 2 * AHEAD) : shown.length;
    if (first === drawnFrom && last === drawnTo) return;
    [drawnFrom, drawnTo] = [first, last];
    const made = shown.slice(first, last).map((row, i) => line(row, first + i));
    if (!shown.length) made.push(h("tr", { class: "space" }, h("td", { colspan: columns.length }, h("div", { class: "empty" }, wanted ? t("table.none") : typeof empty === "function" ? empty() : empty))));
    clear(body, space(first), made, space(shown.length - last));
  }
  function space(count) {
    if (count <= 0) return null;
    return h("tr", { class: "space", "aria-hidden": "true" }, h("td", { colspan: columns.length, style: { height: `${count * ROW_PX}px` } }));
  }
  function line(row, index) {
    const cells = columns.map((column) => h("td", { class: cellClass(column) }, content(column, row)));
    const made = h("tr", { "aria-rowindex": index + 2, "data-key": key ? key(row) : null }, cells);
    if (open) {
      made.classList.add("openable");
      made.addEventListener("click", (event) => {
        if (event.target.closest("a, button, input, label") || window.getSelection()?.toString()) return;
        navigate(address(...open(row)));
      });
    }
    return made;
  }
  function content(column, row) {
    return column.render ? column.render(row) : (column.value(row) ?? "–");
  }

  narrow.addEventListener("change", () => draw());
  arrange();
  return {
    element,
    search,
    update(next) {
      rows = Array.from(next);
      arrange();
    },
    get shown() {
      return shown;
    },
  };
}

// What is missing comes last, whatever the direction.
function compare(a, b, sign) {
  const noA = a === null || a === undefined;
  const noB = b === null || b === undefined;
  if (noA || noB) return noA - noB;
  if (typeof a === "string" || typeof b === "string") return sign * collator.compare(String(a), String(b));
  return sign * (a - b);
}
