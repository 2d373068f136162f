// What the pages about messages share: lists of messages, one message in full, and the fields that choose messages.

import { address, attempt, badge, card, clear, facts, format, fromBase64, get, h, link, notice, t, table, viewer } from "./ui.js";

const MINUTE_MS = 60000;
export const RANGES = { "15m": 15 * MINUTE_MS, "1h": 60 * MINUTE_MS, "24h": 1440 * MINUTE_MS, "7d": 10080 * MINUTE_MS, all: null };

export function place(line) {
  return { topic: line.topic, broker: line.broker, queue: line.queue, offset: line.offset };
}

// A list of messages; `more` are columns after the first, `open` as of a table.
export function messageTable({ open, more = [], tools = [], empty = t("messages.none") }) {
  return table({
    columns: [
      ...more,
      { key: "time", title: t("messages.stored"), value: (row) => row.store_ms, render: (row) => link(...open(row), storeTime(row.store_ms)), class: "nowrap", width: "var(--time-column)" },
      { key: "queue", title: t("messages.queue"), value: (row) => `${row.broker} ${row.queue}`, render: queueName, narrow: false, width: "110px" },
      { key: "offset", title: t("messages.offset"), value: (row) => row.offset, render: offsetCell, right: true, narrow: false, width: "90px" },
      { key: "tag", title: t("messages.tag"), value: (row) => row.tag ?? "", render: (row) => (row.tag ? badge(row.tag) : ""), class: "clip", narrow: false, width: "100px" },
      { key: "keys", title: t("messages.keys"), value: (row) => (row.keys ?? []).join(" "), class: "clip", narrow: false, width: "130px" },
      { key: "size", title: t("messages.size"), value: (row) => row.bytes ?? row.stored_bytes, render: sizeCell, right: true, narrow: false, width: "80px" },
      { key: "body", title: t("messages.body"), value: (row) => row.preview ?? "", render: preview, class: "clip" },
    ],
    key: (row) => `${row.broker} ${row.queue} ${row.offset}`,
    text: (row) => [row.preview, row.tag, ...(row.keys ?? []), row.msg_id, row.offset].join(" "),
    label: t("page.messages"),
    open,
    tools,
    empty,
  });
}

function storeTime(ms) {
  return [h("span", { class: "wide-only" }, format.time(ms)), h("span", { class: "narrow-only", title: format.time(ms) }, format.shortTime(ms))];
}

function queueName(row) {
  return h("span", { class: "nowrap" }, row.broker, h("span", { class: "muted" }, ` · ${row.queue}`));
}

function offsetCell(row) {
  return row.inner ? h("span", { class: "nowrap", title: t("messages.in_batch") }, h("span", { class: "in-batch", "aria-label": t("messages.in_batch") }, "▤ "), format.count(row.offset)) : format.count(row.offset);
}

function sizeCell(row) {
  const text = format.bytes(row.bytes ?? row.stored_bytes);
  return row.compression ? h("span", { class: "nowrap", title: t("messages.compressed", { kind: row.compression, bytes: format.bytes(row.stored_bytes) }) }, text, h("span", { class: "muted" }, " z")) : text;
}

function preview(row) {
  if (row.damage) return badge(t("messages.damaged"), "bad");
  if (row.preview === null) return h("span", { class: "muted" }, t("messages.binary"));
  return h("span", { class: "mono" }, row.preview || h("span", { class: "muted" }, t("viewer.empty")));
}

// What limited a search, as a sentence; null when everything was seen.
export function cutNotice(found) {
  const parts = [];
  if (found.cut) {
    const key = found.cut === "messages" && found.in_range === null ? "messages.cut.first" : `messages.cut.${found.cut}`;
    const values = { shown: found.messages.length, all: format.count(found.in_range), scanned: format.count(found.scanned) };
    parts.push(h("p", {}, t(key, values)));
  }
  if (found.unreachable?.length) parts.push(h("p", {}, t("messages.unreachable", { brokers: found.unreachable.join(", ") })));
  return parts.length ? notice("warn", parts) : null;
}

// Everything about one message, as `get("/api/message")` returns it.
export function messageDetail(message, { actions = [] } = {}) {
  const cards = [];
  if (message.damage) cards.push(notice("bad", t("messages.damage", { reason: message.damage })));
  cards.push(factsCard(message, actions));
  if (message.batch) cards.push(batchCard(message));
  cards.push(bodyCard(message));
  cards.push(propertiesCard(t("messages.properties"), message.properties, t("messages.no_properties")));
  cards.push(propertiesCard(t("messages.system_properties"), message.system_properties, t("messages.no_properties")));
  return h("div", { class: "stack" }, cards);
}

export function factsCard(message, actions = [], title = null) {
  const compressed = message.compression ? t("messages.compressed", { kind: message.compression, bytes: format.bytes(message.stored_bytes) }) : null;
  return card(
    title,
    facts([
      [t("messages.id"), h("span", { class: "mono" }, message.msg_id ?? "–")],
      [t("messages.topic"), message.topic],
      [t("messages.place"), `${message.broker} · ${t("messages.queue")} ${message.queue} · ${t("messages.offset")} ${message.offset}`],
      [t("messages.stored"), `${format.time(message.store_ms)} (${format.ago(message.store_ms)})`],
      [t("messages.born"), `${format.time(message.born_ms)} · ${message.born_host}`],
      message.tag ? [t("messages.tag"), badge(message.tag)] : null,
      message.keys?.length ? [t("messages.keys"), h("span", { class: "row" }, message.keys.map((key) => badge(key)))] : null,
      message.retries ? [t("messages.retries"), String(message.retries)] : null,
      compressed ? [t("messages.compression"), compressed] : null,
      [t("messages.broker_id"), h("span", { class: "mono" }, message.offset_msg_id ?? "–")],
      [t("messages.record"), t("messages.record_at", { offset: message.log_offset, bytes: format.bytes(message.record_bytes), host: message.store_host ?? "–" })],
    ]),
    actions.length ? h("div", { class: "row card-actions" }, actions) : null,
  );
}

// The batch, drawn: a bar for each of its messages, as wide as its body.
function batchCard(message) {
  const { batch } = message;
  const cells = batch.drawn.map((one, i) => {
    const index = batch.drawn_from + i;
    const here = one.offset === message.offset;
    const label = t("messages.batch_cell", { i: index + 1, n: batch.count, offset: one.offset, bytes: format.bytes(one.bytes) });
    const attributes = { class: here ? "cell here" : "cell", style: { flexGrow: String(Math.max(1, one.bytes)) }, title: label, "aria-label": label };
    return here
      ? h("span", { ...attributes, "aria-current": "true" })
      : h("a", { ...attributes, href: address("/messages", { ...place(message), offset: one.offset, show: 1 }) });
  });
  const before = batch.drawn_from > 0 ? h("span", { class: "muted small" }, `+${batch.drawn_from}`) : null;
  const behind = batch.count - batch.drawn_from - batch.drawn.length;
  return card(
    t("messages.batch", { i: batch.index + 1, n: batch.count }),
    h("div", { class: "row batch-row" }, before, h("div", { class: "batch" }, cells), behind > 0 ? h("span", { class: "muted small" }, `+${behind}`) : null),
    h("p", { class: "muted small" }, t("messages.batch_note", { first: batch.first_offset, last: batch.first_offset + batch.count - 1, bytes: format.bytes(batch.bytes) })),
  );
}

export function bodyCard(message, title = t("messages.body")) {
  const { body } = message;
  const download = h("button", { type: "button", onclick: () => attempt(() => saveBody(message), download) }, t("messages.download", { bytes: format.bytes(body.bytes) }));
  return card(
    title,
    body.damage ? notice("warn", t("messages.not_inflated", { reason: body.damage })) : null,
    viewer(fromBase64(body.part), { size: body.bytes }),
    body.damage ? null : h("div", { class: "row card-actions" }, download),
  );
}

async function saveBody(message) {
  const { body } = await get("/api/message/body", place(message));
  save(new Blob([fromBase64(body)], { type: "application/octet-stream" }), `${message.topic}-${message.queue}-${message.offset}.bin`);
}

// Have the browser save a file under a name without characters that a file system could mind.
export function save(blob, name) {
  const url = URL.createObjectURL(blob);
  const anchor = document.createElement("a");
  anchor.href = url;
  anchor.download = name.replace(/[^\w.-]+/g, "_");
  anchor.click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

function propertiesCard(title, properties, empty) {
  const names = Object.keys(properties).sort();
  if (!names.length) return card(title, h("p", { class: "muted" }, empty));
  return card(title, facts(names.map((name) => [h("span", { class: "mono wrap" }, name), h("span", { class: "mono" }, properties[name])])));
}

export function field(label, input, hint = null) {
  return h("label", { class: "field" }, label, input, hint ? h("span", { class: "hint" }, hint) : null);
}

export function choice(name, options, value) {
  return h("select", { name }, options.map(([key, text]) => h("option", { value: key, selected: key === value }, text)));
}

export function rangeChoice(value, names = Object.keys(RANGES)) {
  return choice("range", names.map((name) => [name, t(`messages.range.${name}`)]), value);
}

// The beginning of a range in wall-clock milliseconds; undefined for everything.
export function beginOf(range) {
  return RANGES[range] ? Date.now() - RANGES[range] : undefined;
}

// A field for a topic that suggests names while it is typed.
export function topicField(value, { label = t("messages.topic"), placeholder = "" } = {}) {
  const list = h("datalist", { id: "topic-names" });
  const input = h("input", { name: "topic", list: "topic-names", value, placeholder, required: true, spellcheck: "false", autocomplete: "off", maxlength: "255" });
  let asked = "";
  async function suggest() {
    const part = input.value.trim();
    if (part === asked && list.childElementCount) return;
    asked = part;
    try {
      const { topics } = await get("/api/messages/topics", { part });
      if (asked === part) clear(list, topics.map((name) => h("option", { value: name })));
    } catch {
      clear(list); // the search itself says what is wrong
    }
  }
  input.addEventListener("focus", suggest);
  input.addEventListener("input", suggest);
  return [field(label, input), list, input];
}
