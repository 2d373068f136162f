// Traces: the life of one message as a time line.

import { address, badge, card, clear, facts, format, get, h, icon, load, navigate, notice, pageHead, t } from "../ui.js";
import { field } from "../messages_view.js";

export async function mount(root, context) {
  const { params } = context;
  const id = h("input", { name: "id", value: params.get("id") ?? "", required: true, spellcheck: "false", maxlength: "1000", class: "mono" });
  const topic = h("input", { name: "trace_topic", value: params.get("trace_topic") ?? "", spellcheck: "false", maxlength: "127", placeholder: "RMQ_SYS_TRACE_TOPIC" });
  const form = h("form", { class: "fields" }, h("div", { class: "two-columns" }, field(t("traces.id"), id)), field(t("traces.topic"), topic), h("button", { class: "primary", type: "submit" }, icon("search"), t("traces.show")));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    navigate(address("/traces", { id: id.value.trim(), trace_topic: topic.value.trim() }));
  });
  const place = h("div", { class: "stack" });
  root.append(h("div", { class: "stack" }, pageHead(t("page.traces")), card(null, form), place));
  if (!params.get("id")) {
    clear(place, h("div", { class: "card empty" }, t("traces.hint")));
    id.focus();
    return;
  }
  await load(place, () => get("/api/trace", { id: params.get("id"), trace_topic: params.get("trace_topic") ?? "" }), draw);
}

function draw(life) {
  if (life.missing === "topic") return notice("warn", t("traces.no_topic", { topic: life.trace_topic }));
  if (life.missing) return notice("warn", t("traces.no_records"));
  const span = Math.max(1, life.end_ms - life.begin_ms);
  const head = card(
    null,
    facts([
      [t("traces.id"), h("span", { class: "mono" }, life.msg_id)],
      life.topic ? [t("messages.topic"), h("a", { href: address("/messages", { topic: life.topic, by: "id", text: life.msg_id }) }, life.topic)] : null,
      [t("traces.began"), format.time(life.begin_ms)],
      [t("traces.took"), format.duration(life.end_ms - life.begin_ms)],
    ]),
  );
  const lines = life.events.map((event) => line(event, life.begin_ms, span));
  const axis = h("div", { class: "trace-axis", "aria-hidden": "true" }, h("span", {}, "0"), h("span", {}, format.duration(span / 2)), h("span", {}, format.duration(span)));
  return [head, life.left_out ? notice("warn", t("traces.left_out", { count: life.left_out })) : null, card(t("traces.line"), h("ol", { class: "trace" }, lines), axis, h("p", { class: "muted small" }, t("traces.clocks")))];
}

function line(event, begin, span) {
  const from = event.begin_ms ?? event.end_ms;
  const to = event.end_ms ?? event.begin_ms;
  const left = ((from - begin) / span) * 100;
  const level = event.success === false ? "bad" : event.success === null ? "open" : event.kind;
  const bar = h("div", { class: `bar ${level}`, style: { left: `${Math.min(left, 99.4)}%`, width: `${Math.max(0.6, ((to - from) / span) * 100)}%` } });
  const cost = event.facts.cost_ms ?? (event.begin_ms !== null && event.end_ms !== null && event.kind === "delivery" ? event.end_ms - event.begin_ms : null);
  const outcome = event.success === null ? badge(t("traces.unfinished"), "warn") : event.success ? badge(t("traces.ok"), "ok") : badge(event.outcome || t("traces.failed"), "bad");
  const known = Object.entries(event.facts).filter(([name, value]) => name !== "cost_ms" && value !== "" && value !== null);
  const more = h("details", {}, h("summary", {}, t("traces.details")), facts([[t("traces.client"), event.client || "–"], ...known.map(([name, value]) => [t(`traces.fact.${name}`), String(value)])]));
  return h(
    "li",
    {},
    h("div", { class: "row" }, h("strong", {}, t(`traces.kind.${event.kind}`)), h("span", { class: "wrap muted" }, event.group), outcome, h("span", { class: "number muted small" }, t("traces.at", { offset: format.duration(from - begin) }), cost === null ? "" : ` · ${t("traces.cost", { time: format.duration(cost) })}`)),
    h("div", { class: "lane", "aria-hidden": "true" }, bar),
    more,
  );
}
