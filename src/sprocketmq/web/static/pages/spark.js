// Spark: progress and lag of streaming queries that report to a topic.

import { address, badge, card, chart, clear, errorNotice, facts, format, get, h, icon, loading, navigate, notice, pageHead, t, table } from "../ui.js";
import { topicField } from "../messages_view.js";

const PERIOD_MS = 5000;

export async function mount(root, context) {
  const topic = context.params.get("topic") ?? "";
  const [topicLabel, topicList, input] = topicField(topic, { placeholder: "spark-progress", label: t("spark.topic") });
  input.required = false;
  const form = h("form", { class: "fields" }, topicLabel, topicList, h("button", { type: "submit" }, icon("search"), t("spark.show")));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    navigate(address("/spark", { topic: input.value.trim() }));
  });
  const place = h("div", { class: "stack" }, loading());
  root.append(h("div", { class: "stack" }, pageHead(t("page.spark")), card(null, form), place));
  const opened = new Set();
  const tables = new Map(); // their order stays when they are shown anew
  let timer = 0;
  let left = false;
  context.onLeave(() => {
    left = true;
    clearTimeout(timer);
  });

  async function show() {
    if (!document.hidden) {
      try {
        const found = await get("/api/spark", { topic });
        if (left) return;
        const focused = document.activeElement; // may be in a table, which moves into a new card
        clear(place, draw(found));
        if (focused.isConnected) focused.focus({ preventScroll: true });
        context.live("open");
      } catch (error) {
        if (left) return;
        clear(place, errorNotice(error));
        context.live("lost");
      }
    }
    timer = setTimeout(show, PERIOD_MS);
  }

  function draw(found) {
    if (found.missing) return notice("info", t("spark.no_topic", { topic: found.topic }));
    const notes = [
      found.invalid ? notice("warn", t("spark.invalid", { count: found.invalid })) : null,
      found.cut ? notice("warn", t("spark.older", { count: format.count(found.read) })) : null,
      found.unreachable.length ? notice("warn", t("messages.unreachable", { brokers: found.unreachable.join(", ") })) : null,
    ];
    if (!found.queries.length) return [notes, h("div", { class: "card empty" }, t("spark.hint", { topic: found.topic }))];
    return [notes, found.queries.map(queryCard)];
  }

  function queryCard(query) {
    const level = { running: "ok", stopped: "", silent: "warn" }[query.state];
    const catchUp = query.lag <= 0 ? "–" : query.catch_up_ms === null ? t("spark.growing") : format.duration(query.catch_up_ms);
    const numbers = facts([
      [t("spark.lag"), h("strong", { class: "number" }, format.count(query.lag))],
      [t("spark.rate"), format.rate(query.read_rate)],
      [t("spark.added"), format.rate(query.added_rate)],
      [t("spark.catch_up"), catchUp],
      [t("spark.in_all"), `${format.count(query.read)} · ${t("spark.batches")}: ${format.count(query.batches)}`],
      [t("spark.ago"), `${format.ago(query.at_ms)} · ${query.host}`],
    ]);
    const lag = h("div", {}, h("div", { class: "muted small" }, t("spark.lag_hour")), chart(query.history, { label: t("spark.lag_hour"), text: format.count }));
    const details = h("details", { open: opened.has(query.query), ontoggle: (event) => (event.target.open ? opened.add(query.query) : opened.delete(query.query)) }, h("summary", {}, t("spark.slowest")), places(`slowest ${query.query}`, query.slowest));
    return card(
      null,
      h("div", { class: "row card-title" }, h("h2", { class: "wrap" }, query.query), badge(t(`spark.${query.state}`), level), h("span", { class: "muted small" }, `${t("spark.queues")}: ${format.count(query.queues)}`)),
      h("div", { class: "grid wide" }, numbers, lag),
      h("div", { class: "card-actions" }, places(`topics ${query.query}`, query.topics)),
      query.slowest.length ? h("div", { class: "card-actions" }, details) : null,
    );
  }

  function places(name, rows) {
    if (!tables.has(name)) tables.set(name, placeTable());
    tables.get(name).update(rows);
    return tables.get(name).element;
  }

  await show();
}

function placeTable() {
  return table({
    columns: [
      { key: "topic", title: t("messages.topic"), value: (row) => row.topic, render: (row) => [row.topic, row.broker ? h("span", { class: "muted" }, ` · ${row.broker} · ${row.queue}`) : null], class: "wrap" },
      { key: "position", title: t("spark.position"), value: (row) => row.position, render: (row) => format.count(row.position), right: true, narrow: false, width: "160px" },
      { key: "end", title: t("spark.end"), value: (row) => row.end, render: (row) => format.count(row.end), right: true, narrow: false, width: "160px" },
      { key: "lag", title: t("spark.behind"), value: (row) => row.lag, render: (row) => format.count(row.lag), right: true, width: "120px" },
    ],
    key: (row) => `${row.topic} ${row.broker} ${row.queue}`,
    sort: ["lag", "descending"],
    label: t("spark.topics"),
  });
}
