// Overview: brokers, roles, rates over the last hour, disks, alarms.

import { badge, card, chart, clear, errorNotice, format, get, h, has, loading, meter, notice, pageHead, sparkline, stat, t } from "../ui.js";

const HOUR_MS = 3600000;
const SHOWN_ALARMS = 8;

export async function mount(root, context) {
  const head = h("div", {});
  const alarms = h("div", { class: "stack" });
  const totals = h("div", { class: "stack" });
  const brokers = h("div", {});
  const place = h("div", { class: "stack" }, loading());
  root.append(place);

  const history = new Map(); // address -> [[time, in, out], ...]
  const first = await get("/api/overview");
  for (const [address, columns] of Object.entries(first.history)) {
    history.set(address, columns.time_ms.map((time, i) => [time, columns.in_rate[i], columns.out_rate[i]]));
  }
  clear(place, head, alarms, totals, brokers);
  show(first.cluster);
  context.stream("/api/live", {}, {
    cluster: (view) => {
      remember(view);
      show(view);
    },
    failure: (error) => clear(alarms, errorNotice(error)),
  });

  function remember(view) {
    for (const broker of view.brokers) {
      const points = history.get(broker.address) ?? [];
      if (points.length && points.at(-1)[0] >= view.time_ms) continue;
      points.push(broker.problem ? [view.time_ms, null, null] : [view.time_ms, broker.in_rate, broker.out_rate]);
      while (points.length && view.time_ms - points[0][0] > HOUR_MS) points.shift();
      history.set(broker.address, points);
    }
  }

  function show(view) {
    const answering = view.brokers.filter((broker) => !broker.problem);
    const clusters = [...new Set(view.brokers.map((broker) => broker.cluster).filter(Boolean))];
    clear(
      head,
      pageHead(t("page.overview"), {
        note: h("span", { class: "muted wrap" }, clusters.join(", ")),
        actions: [h("span", { class: "muted small number" }, t("overview.sampled", { time: view.time_ms ? format.clock(view.time_ms) : "–" }))],
      }),
    );
    showAlarms(view);
    showTotals(view, answering);
    showBrokers(view);
  }

  function showAlarms(view) {
    const made = [];
    if (view.problem) made.push(notice("bad", view.problem));
    for (const alarm of view.alarms.filter((one) => one.kind !== "nameserver").slice(0, SHOWN_ALARMS)) made.push(notice(alarm.level, alarmText(alarm)));
    if (view.alarms.length > SHOWN_ALARMS) made.push(h("p", { class: "muted" }, t("overview.more_alarms", { count: view.alarms.length - SHOWN_ALARMS })));
    if (view.left_out) made.push(notice("warn", t("overview.left_out", { count: view.left_out })));
    if (!made.length) made.push(notice("ok", t("overview.fine", { count: view.brokers.length })));
    clear(alarms, made);
  }

  function showTotals(view, answering) {
    const masters = answering.filter((broker) => broker.id === 0);
    const sum = (name) => {
      const known = masters.map((broker) => broker[name]).filter((value) => value !== null);
      return known.length ? known.reduce((a, b) => a + b, 0) : null;
    };
    const points = summed(view);
    const line = (index) => points.map((point) => [point[0], point[index]]);
    const fullest = answering.reduce((most, broker) => ((broker.disk_used ?? -1) > (most?.disk_used ?? -1) ? broker : most), null);
    const oldest = answering.map((broker) => broker.oldest_ms).filter((time) => time > 0);
    clear(
      totals,
      h("div", { class: "grid wide" }, rateCard(t("overview.in"), sum("in_rate"), line(1), ""), rateCard(t("overview.out"), sum("out_rate"), line(2), "second")),
      h(
        "div",
        { class: "grid" },
        stat(t("overview.brokers"), `${answering.length} / ${view.brokers.length}`, t("overview.brokers_note", { masters: masters.length })),
        stat(t("overview.in_today"), format.short(sum("in_today")), t("overview.since_midnight")),
        stat(t("overview.out_today"), format.short(sum("out_today")), t("overview.since_midnight")),
        stat(t("overview.disk"), format.percent(fullest?.disk_used), fullest?.disk_free ? t("overview.free", { bytes: format.bytes(fullest.disk_free) }) : ""),
        stat(t("overview.oldest"), oldest.length ? format.duration(Date.now() - Math.min(...oldest)) : "–", t("overview.oldest_note")),
      ),
    );
  }

  // The rates of all masters added up; brokers are sampled at the same time.
  function summed(view) {
    const byTime = new Map();
    for (const broker of view.brokers.filter((one) => one.id === 0)) {
      for (const [time, incoming, outgoing] of history.get(broker.address) ?? []) {
        const at = byTime.get(time) ?? [time, null, null];
        if (incoming !== null) at[1] = (at[1] ?? 0) + incoming;
        if (outgoing !== null) at[2] = (at[2] ?? 0) + outgoing;
        byTime.set(time, at);
      }
    }
    return [...byTime.values()].sort((a, b) => a[0] - b[0]);
  }

  function rateCard(title, now, points, kind) {
    const most = Math.max(0, ...points.map((point) => point[1] ?? 0));
    const value = h("div", { class: "row between" }, h("div", { class: "value" }, format.rate(now)), h("div", { class: "note" }, t("overview.peak", { rate: format.rate(most) })));
    return h("div", { class: "card stat" }, h("div", { class: "label" }, title), value, chart(points, { label: `${title}: ${format.rate(now)}`, kind }));
  }

  function showBrokers(view) {
    const rows = view.brokers.map((broker) => {
      const points = history.get(broker.address) ?? [];
      const spark = (index, kind) => sparkline(points.map((point) => [point[0], point[index]]), { kind });
      return h(
        "tr",
        {},
        h("td", { class: "broker" }, h("div", {}, h("strong", {}, broker.name), broker.id ? h("span", { class: "muted" }, ` #${broker.id}`) : null), h("div", { class: "muted small" }, broker.address)),
        h("td", {}, state(broker)),
        h("td", { class: "right nowrap" }, format.rate(broker.in_rate)),
        h("td", { class: "wide-only spark-cell" }, spark(1, "")),
        h("td", { class: "right nowrap" }, format.rate(broker.out_rate)),
        h("td", { class: "wide-only spark-cell" }, spark(2, "second")),
        h("td", { class: "wide-only" }, broker.disk_used === null ? "–" : h("div", { class: "row disk" }, h("span", { class: "number" }, format.percent(broker.disk_used)), meter(broker.disk_used, { label: t("overview.disk") }))),
        h("td", { class: "wide-only muted nowrap" }, version(broker)),
        h("td", { class: "wide-only muted nowrap" }, broker.booted_ms ? format.duration(Date.now() - broker.booted_ms) : "–"),
      );
    });
    const title = (key, attributes = {}) => h("th", { scope: "col", ...attributes }, key ? t(key) : "");
    const heads = [
      title("overview.broker"),
      title("overview.role"),
      title("overview.in_short", { class: "right" }),
      h("th", { class: "wide-only", scope: "col" }, h("span", { class: "muted" }, t("overview.last_hour"))),
      title("overview.out_short", { class: "right" }),
      h("th", { class: "wide-only", scope: "col" }, h("span", { class: "muted" }, t("overview.last_hour"))),
      title("overview.disk", { class: "wide-only" }),
      title("overview.version", { class: "wide-only" }),
      title("overview.up", { class: "wide-only" }),
    ];
    if (!rows.length) {
      clear(brokers, card(null, h("div", { class: "empty" }, t("overview.no_brokers"))));
      return;
    }
    clear(brokers, h("div", { class: "table-box" }, h("table", { class: "brokers", "aria-label": t("overview.brokers") }, h("thead", {}, h("tr", {}, heads)), h("tbody", {}, rows))));
  }
}

function state(broker) {
  if (broker.problem) return h("span", { title: broker.problem }, badge(t(broker.gone ? "overview.gone" : "overview.away"), "bad"));
  const role = `overview.role.${broker.role}`;
  return badge(has(role) ? t(role) : broker.role || t("state.unknown"), broker.id === 0 ? "accent" : "");
}

function version(broker) {
  return broker.version ? broker.version.replace(/^V/, "").replaceAll("_", ".") : "–";
}

function alarmText(alarm) {
  const values = { ...alarm.values };
  if ("bytes" in values) values.bytes = format.bytes(values.bytes);
  return t(`alarm.${alarm.kind}`, values);
}
