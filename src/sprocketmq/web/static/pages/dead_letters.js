// Dead letters: groups that have some, the letters of one group, a letter beside its original, and replays.

import { address, backLink, badge, card, clear, dialog, errorNotice, format, get, h, icon, load, navigate, notice, pageHead, post, t, table, toast } from "../ui.js";
import { beginOf, bodyCard, cutNotice, factsCard, field, messageTable, rangeChoice, save } from "../messages_view.js";

export function mount(root, context) {
  const { params } = context;
  if (!params.get("group")) return mountGroups(root);
  if (params.get("offset")) return mountCompare(root, params);
  return mountLetters(root, context);
}

async function mountGroups(root) {
  const place = h("div", {});
  root.append(h("div", { class: "stack" }, pageHead(t("page.dead_letters")), h("p", { class: "muted" }, t("dead_letters.note")), place));
  await load(place, () => get("/api/dead-letters/groups"), (found) => {
    const list = table({
      columns: [
        { key: "group", title: t("dead_letters.group"), value: (row) => row.group, render: (row) => h("a", { href: address("/dead-letters", { group: row.group }) }, row.group), class: "wrap" },
        { key: "messages", title: t("dead_letters.letters"), value: (row) => row.messages, render: (row) => (row.problem ? h("span", { title: row.problem }, badge(t("state.unknown"), "warn")) : format.count(row.messages)), right: true, width: "140px" },
        { key: "newest", title: t("dead_letters.newest"), value: (row) => row.newest_ms, render: (row) => format.ago(row.newest_ms), right: true, width: "180px" },
      ],
      key: (row) => row.group,
      text: (row) => row.group,
      open: (row) => ["/dead-letters", { group: row.group }],
      sort: ["messages", "descending"],
      empty: t("dead_letters.none"),
      label: t("page.dead_letters"),
    });
    list.update(found.groups);
    return [found.left_out ? notice("warn", t("dead_letters.left_out", { count: found.left_out })) : null, list.element];
  });
}

async function mountLetters(root, context) {
  const { params, readOnly } = context;
  const group = params.get("group");
  const range = rangeChoice(params.get("range") ?? "all");
  const contains = h("input", { name: "contains", value: params.get("contains") ?? "", spellcheck: "false", maxlength: "1000" });
  const form = h("form", { class: "fields" }, field(t("messages.range"), range), field(t("messages.contains"), contains), h("button", { type: "submit" }, icon("search"), t("messages.search")));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    navigate(address("/dead-letters", { group, range: range.value, contains: contains.value }));
  });
  const chosen = new Map(); // by place: the line
  const replay = h("button", { class: "primary", type: "button", disabled: true, onclick: () => replayDialog(group, [...chosen.values()], show) });
  const place = h("div", { class: "stack" });
  root.append(
    h(
      "div",
      { class: "stack" },
      pageHead(t("page.dead_letters"), { note: h("span", { class: "muted wrap" }, group), actions: [readOnly ? null : replay].filter(Boolean) }),
      h("div", {}, backLink("/dead-letters", {}, t("dead_letters.back"))),
      card(null, form),
      place,
    ),
  );
  countChosen();
  await show();

  async function show() {
    chosen.clear();
    countChosen();
    const query = { group, by: "time", count: 256, begin_ms: beginOf(params.get("range") ?? "all"), contains: params.get("contains") ?? "" };
    await load(place, () => get("/api/dead-letters", query), draw);
  }
  function draw(found) {
    const boxes = [];
    const mark = {
      key: "mark",
      title: "",
      width: "44px",
      render: (row) => {
        const box = h("input", { type: "checkbox", checked: chosen.has(keyOf(row)), "aria-label": t("dead_letters.choose", { offset: row.offset }), onchange: () => choose(row, box.checked) });
        boxes.push([row, box]);
        return box;
      },
    };
    const state = { key: "state", title: t("dead_letters.state"), value: (row) => row.replayed?.at_ms ?? 0, render: replayedBadge, width: "110px", narrow: false };
    const list = messageTable({
      more: [readOnly ? null : mark, found.messages.some((row) => row.replayed) ? state : null].filter(Boolean),
      open: (row) => ["/dead-letters", { group, broker: row.broker, queue: row.queue, offset: row.offset }],
      empty: t("dead_letters.none_of_group"),
      tools: readOnly ? [] : [h("button", { type: "button", onclick: () => chooseAll(list, boxes) }, t("dead_letters.choose_all"))],
    });
    list.update(found.messages);
    return [cutNotice(found), list.element];
  }
  function choose(row, on) {
    if (on) chosen.set(keyOf(row), row);
    else chosen.delete(keyOf(row));
    countChosen();
  }
  function chooseAll(list, boxes) {
    const all = list.shown.every((row) => chosen.has(keyOf(row)));
    for (const row of list.shown) choose(row, !all);
    for (const [row, box] of boxes) box.checked = chosen.has(keyOf(row));
  }
  function countChosen() {
    replay.disabled = chosen.size === 0;
    clear(replay, icon("play"), t("dead_letters.replay_count", { count: chosen.size }));
  }
}

function keyOf(row) {
  return `${row.broker} ${row.queue} ${row.offset}`;
}

function replayedBadge(row) {
  if (!row.replayed) return "";
  const text = row.replayed.unknown ? t("dead_letters.maybe_replayed") : t("dead_letters.replayed");
  return h("span", { title: format.time(row.replayed.at_ms) }, badge(text, row.replayed.unknown ? "warn" : "ok"));
}

// --- replay: a plan first, then the receipt ---

async function replayDialog(group, lines, done) {
  const request = {
    group,
    places: lines.map(({ broker, queue, offset }) => ({ broker, queue, offset })),
    receipt: randomName(), // one for this dialog: the server answers a second click with the first one's receipt
    again: false,
  };
  const again = h("input", { type: "checkbox", onchange: () => ((request.again = again.checked), plan()) });
  const table_ = h("div", {});
  const content = [
    h("p", {}, t("dead_letters.replay_note")),
    lines.some((line) => line.replayed) ? h("label", { class: "check" }, again, t("dead_letters.again")) : null,
    table_,
  ];
  let runs = 0;
  async function plan() {
    const mine = ++runs;
    try {
      const planned = await post("/api/dead-letters/plan", request);
      if (mine === runs) clear(table_, outcomes(planned));
    } catch (error) {
      if (mine === runs) clear(table_, errorNotice(error));
    }
  }
  plan();
  const receipt = await dialog({
    title: t("dead_letters.replay_title", { count: lines.length }),
    large: true,
    content,
    buttons: [
      { text: t("action.cancel") },
      { text: t("dead_letters.replay"), kind: "primary", act: () => post("/api/dead-letters/replay", request) },
    ],
  });
  if (!receipt?.entries) return;
  const keep = h("button", { type: "button", onclick: () => saveReceipt(receipt) }, t("dead_letters.save"));
  await dialog({
    title: t("dead_letters.receipt"),
    large: true,
    content: [h("p", {}, t("dead_letters.stays")), outcomes(receipt), h("div", { class: "card-actions" }, keep)],
    buttons: [{ text: t("dead_letters.done"), kind: "primary", value: true }],
  });
  done();
}

function saveReceipt(receipt) {
  save(new Blob([JSON.stringify(receipt, null, 2)], { type: "application/json" }), `replay-${receipt.group}-${receipt.began_ms}.json`);
  toast(t("dead_letters.saved"));
}

function outcomes(receipt) {
  const kinds = { sent: "ok", would_send: "accent", skipped: "", failed: "bad", unknown: "warn" };
  const counts = Object.entries(receipt.counts).map(([kind, n]) => badge(`${t(`dead_letters.outcome.${kind}`)}: ${n}`, kinds[kind]));
  const list = table({
    columns: [
      { key: "offset", title: t("messages.offset"), value: (row) => row.offset, render: (row) => `${row.broker} · ${row.queue} · ${row.offset}`, width: "190px" },
      { key: "outcome", title: t("dead_letters.outcome"), value: (row) => row.outcome, render: (row) => badge(t(`dead_letters.outcome.${row.outcome}`), kinds[row.outcome]), width: "120px" },
      { key: "to", title: t("dead_letters.to"), value: (row) => row.to?.topic ?? row.origin ?? "", render: toCell, class: "wrap" },
    ],
    key: keyOf,
    label: t("dead_letters.receipt"),
  });
  list.update(receipt.entries);
  return h("div", { class: "stack" }, h("div", { class: "row" }, counts), list.element);
}

function toCell(row) {
  const to = row.to ?? row.replayed?.to;
  const where = to ? h("a", { href: address("/messages", { topic: to.topic, broker: to.broker, queue: to.queue, offset: to.offset, show: 1 }) }, `${to.topic} · ${to.broker} · ${to.queue} · ${to.offset}`) : (row.origin ?? "");
  return [where, row.reason ? h("div", { class: "muted small wrap" }, row.reason) : null];
}

function randomName() {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

// --- one letter and its original ---

async function mountCompare(root, params) {
  const where = Object.fromEntries(["group", "broker", "queue", "offset"].map((name) => [name, params.get(name) ?? ""]));
  const place = h("div", { class: "stack" });
  root.append(h("div", { class: "stack" }, pageHead(t("dead_letters.compare"), { note: h("span", { class: "muted wrap" }, where.group) }), h("div", {}, backLink("/dead-letters", { group: where.group }, t("dead_letters.back_to_group"))), place));
  await load(place, () => get("/api/dead-letter", where), (found) => {
    const { letter, original } = found;
    const left = factsCard(letter, [], t("dead_letters.letter"));
    const right = original ? factsCard(original, [openOriginal(original)], t("dead_letters.original")) : card(t("dead_letters.original"), notice("warn", t("dead_letters.no_original", { reason: found.why })));
    return [
      h("div", { class: "grid wide" }, left, right),
      found.same_body === null ? null : notice(found.same_body ? "ok" : "warn", t(found.same_body ? "dead_letters.same_body" : "dead_letters.other_body")),
      found.changed ? changes(found.changed) : null,
      bodyCard(letter),
    ];
  });
}

function openOriginal(original) {
  return h("a", { class: "button", href: address("/messages", { topic: original.topic, broker: original.broker, queue: original.queue, offset: original.offset, show: 1 }) }, icon("messages"), t("dead_letters.open_original"));
}

function changes(changed) {
  const list = table({
    columns: [
      { key: "name", title: t("dead_letters.property"), value: (row) => row.name, class: "mono wrap" },
      { key: "before", title: t("dead_letters.before"), value: (row) => row.before ?? "–", class: "mono wrap" },
      { key: "after", title: t("dead_letters.after"), value: (row) => row.after ?? "–", class: "mono wrap" },
    ],
    key: (row) => row.name,
    label: t("dead_letters.changes"),
    empty: t("dead_letters.no_changes"),
  });
  list.update(changed);
  return h("div", { class: "stack" }, h("h2", {}, t("dead_letters.changes")), list.element);
}
