// Messages: search, one message in full, a test message, and following a topic.

import { address, backLink, badge, card, clear, dialog, errorNotice, format, get, h, icon, link, loading, navigate, notice, pageHead, post, stream, t, toast } from "../ui.js";
import { beginOf, choice, cutNotice, field, messageDetail, messageTable, place, rangeChoice, topicField } from "../messages_view.js";

const WAYS = ["time", "key", "id", "tag", "offset"];
const COUNTS = ["32", "64", "128", "256"];
const FOLLOWED_ROWS = 200;

export function mount(root, context) {
  const { params } = context;
  if (params.get("show")) return mountMessage(root, params);
  if (params.get("follow") && params.get("topic")) return mountFollow(root, context);
  return mountSearch(root, context);
}

// --- search ---

function mountSearch(root, context) {
  const { params, readOnly } = context;
  const [topicLabel, topicList, topic] = topicField(params.get("topic") ?? "");
  const by = choice("by", WAYS.map((way) => [way, t(`messages.by.${way}`)]), params.get("by") ?? "time");
  const fields = h("div", { class: "fields-inner" });
  const results = h("div", { class: "stack" });
  const button = h("button", { class: "primary", type: "submit" }, icon("search"), t("messages.search"));
  const form = h("form", { class: "fields" }, topicLabel, topicList, field(t("messages.search_by"), by), fields, button);
  const follow = h("button", { type: "button", onclick: () => form.reportValidity() && navigate(address("/messages", { topic: topic.value.trim(), follow: 1 })) }, icon("play"), t("messages.follow"));
  const produce = h("button", { type: "button", onclick: () => openProduce(topic.value.trim()) }, icon("plus"), t("messages.produce"));
  root.append(h("div", { class: "stack" }, pageHead(t("page.messages"), { actions: [follow, readOnly ? null : produce] }), card(null, form), results));
  showFields();
  by.addEventListener("change", showFields);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const query = Object.fromEntries(new FormData(form).entries());
    navigate(address("/messages", query));
  });
  if (!params.get("topic")) {
    clear(results, h("div", { class: "card empty" }, t("messages.hint")));
    topic.focus();
    return null;
  }
  return search();

  function showFields() {
    const range = field(t("messages.range"), rangeChoice(params.get("range") ?? "1h"));
    const text = (label) => field(label, h("input", { name: "text", value: params.get("text") ?? "", spellcheck: "false", required: true, maxlength: "4000" }));
    const queue = field(t("messages.queue"), h("input", { name: "queue", type: "number", min: "0", value: params.get("queue") ?? "", placeholder: t("messages.all_queues") }));
    const count = field(t("messages.count"), choice("count", COUNTS.map((n) => [n, n]), params.get("count") ?? "64"));
    const broker = field(t("messages.broker"), h("input", { name: "broker", value: params.get("broker") ?? "", spellcheck: "false", placeholder: t("messages.any_broker") }));
    const shown = {
      time: () => [range, field(t("messages.contains"), h("input", { name: "contains", value: params.get("contains") ?? "", spellcheck: "false", maxlength: "1000" })), queue, count],
      key: () => [text(t("messages.key")), range, count],
      tag: () => [text(t("messages.tag")), range, count],
      id: () => [text(t("messages.id"))],
      offset: () => [broker, queue, field(t("messages.offset"), h("input", { name: "offset", type: "number", min: "0", value: params.get("offset") ?? "0", required: true })), count],
    };
    clear(fields, shown[by.value]());
  }

  async function search() {
    clear(results, loading());
    const { topic: name, by: way = "time", text, queue, broker, offset, contains, count = "64", range = "1h" } = Object.fromEntries(params);
    const query = { topic: name, by: way, count };
    if (way === "time") Object.assign(query, { begin_ms: beginOf(range), contains, queue });
    else if (way === "offset") Object.assign(query, { broker, queue: queue || "0", offset: offset || "0" });
    else Object.assign(query, { text });
    if (way === "key" || way === "tag") query.begin_ms = beginOf(range);
    try {
      const found = await get("/api/messages", query);
      const list = messageTable({
        open: (row) => ["/messages", { ...place(row), topic: row.topic ?? name, show: 1 }],
        empty: range === "all" || way === "id" || way === "offset" ? t("messages.none") : t("messages.none_in_range", { range: t(`messages.range.${range}`) }),
      });
      list.update(found.messages);
      clear(results, cutNotice(found), list.element, more(query, found));
    } catch (error) {
      clear(results, errorNotice(error, search));
    }
  }

  // Reading on in a queue.
  function more(query, found) {
    if (query.by !== "offset" || !found.cut) return null;
    const next = found.messages.at(-1).offset + 1;
    return h("div", { class: "row" }, link("/messages", { ...query, offset: next }, t("messages.next", { offset: next })));
  }
}

// --- one message ---

async function mountMessage(root, params) {
  const where = Object.fromEntries(["topic", "broker", "queue", "offset"].map((name) => [name, params.get(name) ?? ""]));
  const back = backLink("/messages", { topic: where.topic }, t("messages.back"));
  const place_ = h("div", {}, loading());
  root.append(h("div", { class: "stack" }, pageHead(t("messages.title"), { note: h("span", { class: "muted wrap" }, where.topic) }), h("div", {}, back), place_));
  const draw = async () => {
    clear(place_, loading());
    try {
      const message = await get("/api/message", where);
      const offset = Number(where.offset);
      const neighbour = (to, key) => (to < 0 ? null : h("a", { class: "button", href: address("/messages", { ...where, offset: to, show: 1 }) }, t(key)));
      const actions = [
        neighbour(offset - 1, "messages.previous"),
        neighbour(offset + 1, "messages.following"),
        message.msg_id ? h("a", { class: "button", href: address("/traces", { id: message.msg_id }) }, icon("traces"), t("messages.trace")) : null,
      ];
      clear(place_, messageDetail(message, { actions }));
    } catch (error) {
      clear(place_, errorNotice(error, draw));
    }
  };
  await draw();
}

// --- a test message ---

async function openProduce(topic) {
  const [topicLabel, topicList, topicInput] = topicField(topic);
  const body = h("textarea", { name: "body", rows: "6", maxlength: "1048576", spellcheck: "false" });
  const encoding = choice("encoding", ["text", "hex", "base64"].map((name) => [name, t(`messages.encoding.${name}`)]), "text");
  const tag = h("input", { spellcheck: "false", maxlength: "255" });
  const keys = h("input", { spellcheck: "false", maxlength: "4000" });
  const properties = h("textarea", { rows: "3", spellcheck: "false", placeholder: "name=value" });
  const sent = await dialog({
    title: t("messages.produce"),
    large: true,
    content: [
      topicLabel,
      topicList,
      field(t("messages.body"), body),
      h("div", { class: "grid" }, field(t("messages.encoding"), encoding), field(t("messages.tag"), tag), field(t("messages.keys"), keys, t("messages.keys_hint"))),
      field(t("messages.properties"), properties, t("messages.properties_hint")),
    ],
    buttons: [
      { text: t("action.cancel") },
      {
        text: t("messages.send"),
        kind: "primary",
        act: () =>
          post("/api/message/produce", {
            topic: topicInput.value.trim(),
            body: body.value,
            encoding: encoding.value,
            tag: tag.value.trim(),
            keys: keys.value.split(/\s+/).filter(Boolean),
            properties: pairs(properties.value),
          }),
      },
    ],
  });
  if (!sent?.msg_id) return;
  toast(t("messages.sent", { topic: sent.topic, queue: sent.queue, offset: sent.offset }));
  navigate(address("/messages", { ...place(sent), show: 1 }));
}

function pairs(text) {
  const lines = text.split("\n").map((line) => line.trim()).filter(Boolean);
  const wrong = lines.find((line) => line.indexOf("=") < 1);
  if (wrong !== undefined) throw new Error(t("messages.no_pair", { line: wrong }));
  return Object.fromEntries(lines.map((line) => [line.slice(0, line.indexOf("=")).trim(), line.slice(line.indexOf("=") + 1).trim()]));
}

// --- following ---

function mountFollow(root, context) {
  const topic = context.params.get("topic");
  let rows = [];
  let paused = false;
  let skipped = 0;
  let seen = 0;
  const state = badge(t("live.waiting"));
  const numbers = h("span", { class: "muted number" });
  const problem = h("div", {});
  const pause = h("button", { type: "button", onclick: () => setPaused(!paused) });
  const list = messageTable({ open: (row) => ["/messages", { ...place(row), topic, show: 1 }], empty: t("messages.waiting") });
  const back = backLink("/messages", { topic }, t("messages.back"));
  root.append(
    h("div", { class: "stack" }, pageHead(t("messages.following_topic"), { note: h("span", { class: "row" }, h("span", { class: "wrap muted" }, topic), state), actions: [pause] }), h("div", {}, back), problem, h("p", { class: "muted small" }, t("messages.follow_note")), numbers, list.element),
  );
  setPaused(false);
  count(null);
  const close = stream("/api/messages/follow", { topic }, {
    state: (name) => setState(t(`live.${name}`), name === "open" ? "ok" : "warn"),
    failure: (error) => {
      clear(problem, errorNotice(error));
      if (error.kind !== "Unreachable") end();
    },
    tick: (tick) => {
      clear(problem, tick.problem ? notice(tick.ended ? "bad" : "warn", tick.ended === "gone" ? t("messages.topic_gone", { topic }) : tick.problem) : null);
      if (tick.ended === "time") clear(problem, notice("warn", t("messages.follow_ended")));
      if (tick.ended) {
        end();
        return;
      }
      skipped += tick.skipped;
      seen += tick.messages.length + tick.skipped;
      rows = [...tick.messages.reverse(), ...rows].slice(0, FOLLOWED_ROWS);
      count(tick.rate);
      if (tick.messages.length && !paused) list.update(rows);
    },
  });
  context.onLeave(close);

  function end() {
    close();
    setState(t("messages.ended"), "");
  }
  function setState(text, level) {
    state.textContent = text;
    state.className = `badge ${level}`;
  }
  function setPaused(value) {
    paused = value;
    clear(pause, icon(paused ? "play" : "pause"), t(paused ? "messages.resume" : "messages.pause"));
    if (!paused) list.update(rows);
  }
  function count(rate) {
    numbers.textContent = t("messages.follow_numbers", { seen: format.count(seen), rate: format.rate(rate), skipped: format.count(skipped) });
  }
}
