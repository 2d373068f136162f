// Topics: the list of all, or one of them with its queues, groups and tags.

import {
  backLink, badge, card, clear, confirmTyped, dialog, errorNotice, facts, format, get, h, icon, link, load, meter, navigate, notice, pageHead, post, stat, t, table, toast,
} from "../ui.js";
import { figureCells, poll, reasons, unknown } from "../polling.js";

const REFRESH_MS = 10000;
const KINDS = ["normal", "retry", "dlq", "system"];
const MESSAGE_TYPES = ["NORMAL", "FIFO", "DELAY", "TRANSACTION"];

export async function mount(root, context) {
  const name = context.params.get("topic");
  if (name) await showTopic(root, context, name);
  else await showList(root, context);
}

// --- the list ---

async function showList(root, context) {
  const figures = figureCells(context, "/api/topics/figures", "topics", REFRESH_MS);
  let rows = [];
  const figure = (row, draw) => figures.cell(row.name, (found) => draw(found, reasons(found.unknown).join("; ")));
  const or = (value, reason, text) => (value === null || value === undefined ? unknown(reason) : text(value));
  const kinds = h("select", { "aria-label": t("topics.kind"), onchange: () => filter() }, ["", ...KINDS].map((kind) => h("option", { value: kind, selected: kind === "normal" }, t(`topics.kind.${kind || "all"}`))));
  const all = h("button", { type: "button", class: "quiet", onclick: () => loadAll() }, t("topics.load_all"));
  const list = table({
    label: t("page.topics"),
    columns: [
      { key: "name", title: t("topics.name"), value: (row) => row.name, render: (row) => h("span", { class: "wrap" }, link("/topics", { topic: row.name }, row.name)), width: "34%" },
      { key: "type", title: t("topics.type"), value: (row) => row.type ?? "", render: (row) => typeBadge(row.type), narrow: false },
      { key: "queues", title: t("topics.queues"), value: (row) => row.queues, render: (row) => or(row.queues, t("topics.no_broker"), format.count), right: true, narrow: false },
      { key: "rate", title: t("topics.rate"), value: (row) => figures.known(row.name)?.rate, render: (row) => figure(row, (found, why) => or(found.rate, why, format.rate)), right: true },
      { key: "batch", title: t("topics.batch"), value: (row) => figures.known(row.name)?.batch, render: (row) => figure(row, (found) => format.short(found.batch)), right: true, narrow: false },
      { key: "messages", title: t("topics.messages"), value: (row) => figures.known(row.name)?.messages, render: (row) => figure(row, (found, why) => or(found.messages, why, format.short)), right: true },
      { key: "bytes", title: t("topics.size"), value: (row) => figures.known(row.name)?.bytes, render: (row) => figure(row, (found) => sizeText(found)), right: true, narrow: false },
      { key: "newest", title: t("topics.newest"), value: (row) => figures.known(row.name)?.newest_ms, render: (row) => figure(row, (found) => format.ago(found.newest_ms)), right: true, narrow: false },
    ],
    key: (row) => row.name,
    text: (row) => row.name,
    open: (row) => ["/topics", { topic: row.name }],
    sort: ["name", "ascending"],
    empty: t("topics.empty"),
    tools: [kinds, all],
  });
  const notices = h("div", { class: "stack" });
  const create = context.readOnly ? [] : [h("button", { class: "primary", onclick: () => createTopic() }, icon("plus"), t("topics.create"))];
  const refresh = async () => {
    const found = await get("/api/topics");
    const missing = reasons(found.missing);
    if (found.problem) missing.push(found.problem);
    clear(notices, missing.length ? notice("warn", h("p", {}, t("topics.partial")), missing.map((text) => h("p", { class: "wrap" }, text))) : null);
    const names = found.topics.map((row) => `${row.name} ${row.type} ${row.queues}`).join("\n");
    if (names !== refresh.names) {
      refresh.names = names;
      rows = found.topics;
      filter();
    }
  };
  function filter() {
    list.update(kinds.value ? rows.filter((row) => row.kind === kinds.value) : rows);
  }
  async function loadAll() {
    all.disabled = true;
    const names = list.shown.map((row) => row.name);
    await figures.all(names, (done) => (all.textContent = t("topics.loaded", { done, all: names.length })));
    all.disabled = false;
    all.textContent = t("topics.load_all");
    filter();
  }
  await refresh();
  root.append(h("div", { class: "stack" }, pageHead(t("page.topics"), { actions: create }), notices, list.element));
  poll(context, refresh, 2 * REFRESH_MS);
}

function typeBadge(type) {
  if (type === null) return unknown(t("topics.no_broker"));
  return badge(t(`topics.type.${type}`), type === "batch" ? "accent" : type === "mixed" ? "warn" : "");
}

function sizeText(found) {
  return found.bytes === null || found.bytes === undefined ? unknown(t("topics.size_unknown")) : t("topics.about", { size: format.bytes(found.bytes) });
}

async function createTopic() {
  const name = h("input", { required: true, maxlength: "127", spellcheck: "false", autocomplete: "off", autofocus: true });
  const queues = h("input", { type: "number", min: "1", max: "65536", value: "8", required: true });
  const batch = h("select", {}, h("option", { value: "" }, t("topics.type.plain")), h("option", { value: "1" }, t("topics.type.batch")));
  const kind = messageTypes("");
  const done = await dialog({
    title: t("topics.create"),
    content: [
      field(t("topics.name"), name),
      field(t("topics.queues_each"), queues),
      field(t("topics.type"), batch, t("topics.type_note")),
      field(t("topics.message_type"), kind),
    ],
    buttons: [
      { text: t("action.cancel"), value: false },
      {
        text: t("topics.create"),
        kind: "primary",
        act: () => post("/api/topic/create", { topic: name.value.trim(), queues: Number(queues.value), batch: Boolean(batch.value), message_type: kind.value }),
      },
    ],
  });
  if (done) {
    toast(t("topics.created", { topic: done.topic }));
    navigate(`/topics?${new URLSearchParams({ topic: done.topic })}`);
  }
}

function messageTypes(chosen) {
  return h("select", {}, ["", ...MESSAGE_TYPES].map((type) => h("option", { value: type, selected: type === chosen }, type || t("topics.message_type_none"))));
}

function field(label, input, note = "") {
  return h("label", { class: "field" }, h("span", {}, label), input, note ? h("span", { class: "muted small" }, note) : null);
}

// --- one topic ---

async function showTopic(root, context, name) {
  const place = h("div", { class: "stack" });
  const tags = h("div", {});
  const notices = h("div", { class: "stack" });
  const parts = { stats: h("div", { class: "grid" }), queues: h("div", { class: "stack tight" }), groups: h("div", {}), settings: h("div", {}) };
  let known = null;
  const changed = () => refresh().catch((error) => clear(notices, errorNotice(error)));
  const actions = context.readOnly
    ? []
    : [
        h("button", { onclick: () => alterTopic(known, changed) }, t("topics.alter")),
        h("button", { class: "danger", onclick: () => deleteTopic(known) }, icon("trash"), t("action.delete")),
      ];
  const back = backLink("/topics", {}, t("page.topics"));
  const title = h("span", { class: "wrap" }, name);
  const buttons = h("div", { class: "row" }, actions);

  async function refresh() {
    const topic = await get("/api/topic", { topic: name });
    known = topic;
    draw(topic);
  }
  function draw(topic) {
    const figures = topic.figures;
    const why = reasons({ ...figures.unknown, ...topic.unknown }).join("; ");
    const told = (value, text) => (value === null || value === undefined ? unknown(why) : text(value));
    const missing = reasons({ ...figures.unknown, ...topic.unknown });
    clear(notices, missing.length ? notice("warn", missing.map((text) => h("p", { class: "wrap" }, text))) : null);
    clear(
      parts.stats,
      stat(t("topics.rate"), told(figures.rate, format.rate), t("topics.rate_note")),
      stat(t("topics.batch"), format.short(figures.batch), t("topics.batch_note")),
      stat(t("topics.messages"), told(figures.messages, format.count), t("topics.messages_note")),
      stat(t("topics.size"), sizeText(figures), t("topics.size_note")),
      stat(t("topics.newest"), format.ago(figures.newest_ms), figures.newest_ms ? format.time(figures.newest_ms) : ""),
    );
    queues.update(topic.queue_rows);
    clear(moreQueues, topic.more_queues ? t("topics.more_queues", { count: topic.more_queues }) : "");
    const groups = topic.groups.map((group) => h("div", { class: "wrap" }, link("/groups", { group }, group)));
    if (topic.more_groups) groups.push(h("div", { class: "muted" }, t("topics.more_groups", { count: topic.more_groups })));
    clear(parts.groups, card(t("topics.groups"), groups.length ? h("div", { class: "stack tight" }, groups) : h("p", { class: "muted" }, t("topics.no_groups"))));
    clear(parts.settings, card(t("topics.settings"), h("div", { class: "stack" }, topic.settings.map((one) => settings(one)))));
  }
  const queues = table({
    label: t("topics.queues"),
    columns: [
      { key: "broker", title: t("topics.broker"), value: (row) => row.broker },
      { key: "queue", title: t("topics.queue"), value: (row) => row.queue, right: true },
      { key: "begin", title: t("topics.begin"), value: (row) => row.begin, render: (row) => format.count(row.begin), right: true, narrow: false },
      { key: "end", title: t("topics.end"), value: (row) => row.end, render: (row) => format.count(row.end), right: true },
      { key: "messages", title: t("topics.messages"), value: (row) => row.end - row.begin, render: (row) => format.count(row.end - row.begin), right: true },
      { key: "newest", title: t("topics.newest"), value: (row) => row.newest_ms, render: (row) => format.ago(row.newest_ms), right: true, narrow: false },
    ],
    key: (row) => `${row.broker} ${row.queue}`,
    empty: t("topics.no_queues"),
  });
  const moreQueues = h("p", { class: "muted" });
  parts.queues.append(h("h2", {}, t("topics.queues")), queues.element, moreQueues);

  root.append(place);
  await load(place, () => get("/api/topic", { topic: name }), (topic) => {
    known = topic;
    draw(topic);
    load(tags, () => get("/api/topic/tags", { topic: name }), drawTags);
    poll(context, again, REFRESH_MS);
    return [
      h("div", {}, back),
      pageHead(title, { note: h("span", { class: "row" }, typeBadge(topic.type), topic.kind === "normal" ? null : badge(t(`topics.kind.${topic.kind}`))), actions: [buttons] }),
      notices,
      parts.stats,
      h("div", {}, link("/messages", { topic: name }, t("topics.show_messages"))),
      parts.queues,
      h("div", { class: "grid wide" }, tags, parts.groups, parts.settings),
    ];
  });
  // The topic may be deleted while its page is open.
  async function again() {
    try {
      await refresh();
    } catch (error) {
      if (error.kind !== "TopicNotFound") throw error;
      clear(notices, notice("warn", t("topics.gone", { topic: name })));
      buttons.remove();
      return false;
    }
    return true;
  }
}

function settings(one) {
  const attributes = Object.entries(one.attributes).map(([name, value]) => `${name} = ${value}`);
  return facts([
    [t("topics.broker"), h("strong", { class: "wrap" }, one.broker)],
    [t("topics.queues_read_write"), `${one.read_queues} / ${one.write_queues}`],
    [t("topics.perm"), permission(one.perm)],
    [t("topics.attributes"), attributes.length ? h("span", { class: "wrap" }, attributes.join(", ")) : "–"],
  ]);
}

function permission(perm) {
  const names = [[4, "read"], [2, "write"], [1, "inherit"]].filter(([bit]) => perm & bit).map(([, name]) => t(`topics.perm.${name}`));
  return names.length ? names.join(", ") : t("topics.perm.none");
}

function drawTags(found) {
  const rows = found.tags.map(({ tag, count }) =>
    h(
      "tr",
      {},
      h("td", { class: "wrap" }, tag || h("span", { class: "muted" }, t("topics.no_tag"))),
      h("td", { class: "right" }, format.count(count)),
      h("td", { class: "share" }, meter(count / found.messages, { warn: 2, bad: 2, label: t("topics.share") })),
    ),
  );
  const note = found.messages ? t("topics.tags_note", { count: found.messages, size: format.bytes(found.mean_body_bytes) }) : t("topics.tags_none");
  return card(
    t("topics.tags"),
    h("p", { class: "muted small" }, note),
    found.unreachable.length ? notice("warn", t("topics.tags_partial", { brokers: found.unreachable.join(", ") })) : null,
    rows.length ? h("table", { "aria-label": t("topics.tags") }, h("tbody", {}, rows)) : null,
    found.more_tags ? h("p", { class: "muted small" }, t("topics.more_tags", { count: found.more_tags })) : null,
  );
}

async function alterTopic(topic, changed) {
  const first = topic.settings[0];
  const most = Math.max(...topic.settings.map((one) => one.read_queues));
  const queues = h("input", { type: "number", min: "1", max: "65536", value: String(most || 1), required: true });
  const fewer = h("div", {});
  queues.addEventListener("input", () => clear(fewer, Number(queues.value) < most ? notice("warn", t("topics.fewer", { count: most })) : null));
  const perm = h("select", {}, [6, 4, 2, 0].map((bits) => h("option", { value: String(bits), selected: bits === ((first?.perm ?? 6) & 6) }, permission(bits))));
  const kind = messageTypes(first?.attributes["message.type"] ?? "");
  const done = await dialog({
    title: t("topics.alter_title", { topic: topic.name }),
    content: [field(t("topics.queues_each"), queues), fewer, field(t("topics.perm"), perm), field(t("topics.message_type"), kind)],
    buttons: [
      { text: t("action.cancel"), value: false },
      {
        text: t("topics.alter"),
        kind: "primary",
        act: () => post("/api/topic/alter", { topic: topic.name, queues: Number(queues.value), perm: Number(perm.value) + ((first?.perm ?? 0) & 1), message_type: kind.value }),
      },
    ],
  });
  if (done) {
    toast(t("topics.altered", { topic: topic.name }));
    await changed();
  }
}

async function deleteTopic(topic) {
  const done = await confirmTyped({
    title: t("topics.delete_title"),
    text: t("topics.delete_text", { topic: topic.name, count: format.count(topic.figures.messages) }),
    word: topic.name,
    act: () => post("/api/topic/delete", { topic: topic.name, confirm: topic.name }),
  });
  if (done) {
    toast(t("topics.deleted", { topic: topic.name }));
    navigate("/topics");
  }
}
