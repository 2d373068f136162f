// Store: of each broker its log, queues, key index and disk, and what expires when.

import { badge, card, clear, errorNotice, facts, format, get, h, meter, notice, pageHead, stat, t, table } from "../ui.js";
import { poll, unknown } from "../polling.js";

const REFRESH_MS = 15000;

export async function mount(root, context) {
  const place = h("div", { class: "stack" });
  const problem = h("div", {});
  const sections = new Map();
  root.append(h("div", { class: "stack" }, pageHead(t("page.store")), problem, place));
  async function refresh() {
    let found;
    try {
      found = await get("/api/stores");
    } catch (error) {
      clear(problem, errorNotice(error, () => refresh().catch(() => {})));
      throw error;
    }
    clear(problem);
    const names = new Set();
    for (const one of found.stores) {
      const name = `${one.broker} ${one.id}`;
      names.add(name);
      if (!sections.has(name)) sections.set(name, section());
      sections.get(name).show(one, found.now_ms);
    }
    for (const name of sections.keys()) if (!names.has(name)) sections.delete(name);
    clear(place, sections.size ? [...sections.values()].map((one) => one.element) : card(null, h("div", { class: "empty" }, t("store.none"))));
  }
  await refresh().catch(() => {});
  poll(context, refresh, REFRESH_MS);
}

const told = (value, text) => (value === null || value === undefined ? unknown(t("store.not_told")) : text(value));

function section() {
  const body = h("div", { class: "stack" });
  const element = h("section", { class: "stack" }, body);
  const segments = table({
    label: t("store.segments"),
    columns: [
      { key: "start", title: t("store.start"), value: (row) => row.start, render: (row) => h("span", { class: "number" }, format.count(row.start)) },
      { key: "bytes", title: t("store.bytes"), value: (row) => row.bytes, render: (row) => format.bytes(row.bytes), right: true },
      { key: "written", title: t("store.written"), value: (row) => row.written_ms, render: (row) => format.time(row.written_ms).slice(0, 19), narrow: false },
      { key: "expires", title: t("store.expires"), value: (row) => row.expires_ms, render: (row) => expiry(row) },
    ],
    key: (row) => String(row.start),
    sort: ["start", "ascending"],
  });
  let nowMs = 0;

  function expiry(row) {
    if (row.last) return h("span", { class: "muted" }, t("store.in_use"));
    if (row.expires_ms === null) return unknown(t("store.no_config"));
    return row.expires_ms <= nowMs ? badge(t("store.due"), "warn") : t("store.in_time", { time: format.duration(row.expires_ms - nowMs) });
  }
  function show(one, now) {
    nowMs = now;
    const title = h("h2", { class: "wrap" }, `${one.broker}${one.id ? ` #${one.id}` : ""} `, h("span", { class: "muted small" }, one.address));
    if (one.problem) {
      clear(body, title, notice("bad", h("p", { class: "wrap" }, one.problem)));
      return;
    }
    clear(
      body,
      title,
      one.writable === false ? notice("bad", t("store.full")) : null,
      one.index_failure ? notice("bad", t("store.index_stopped", { reason: one.index_failure })) : null,
      one.own ? null : notice("", t("store.other_broker")),
      h(
        "div",
        { class: "grid" },
        stat(t("store.log"), told(one.log_bytes, format.bytes), one.segment_count === null ? "" : t("store.segment_count", { count: format.count(one.segment_count) })),
        stat(t("store.horizon"), one.earliest_ms ? format.duration(Math.max(0, now - one.earliest_ms)) : "–", one.keep_ms === null ? t("store.no_config") : t("store.keeps", { time: format.duration(one.keep_ms) })),
        diskStat(one),
        stat(t("store.queues"), told(one.queue_count, format.count), one.batch_topic_count === null ? "" : t("store.batch_topics", { count: format.count(one.batch_topic_count) })),
        indexStat(one),
      ),
      segmentCard(one),
    );
  }
  function diskStat(one) {
    const used = one.disk_ratio ?? (one.disk_total ? 1 - one.disk_free / one.disk_total : null);
    const box = stat(t("store.disk"), told(used, format.percent), one.disk_free === null ? "" : t("store.free", { bytes: format.bytes(one.disk_free), total: format.bytes(one.disk_total) }));
    if (used !== null) box.append(meter(used, { label: t("store.disk") }));
    return box;
  }
  function indexStat(one) {
    if (one.index_enabled === false) return stat(t("store.index"), t("store.off"), t("store.index_off"));
    const share = one.index_room ? one.index_entries / one.index_room : null;
    const fill = t("store.index_fill", { share: format.percent(share) });
    const box = stat(t("store.index"), told(one.index_entries, (entries) => t("store.entries", { count: format.short(entries) })), share === null ? "" : fill);
    if (share !== null) box.append(meter(share, { warn: 2, bad: 2, label: fill }));
    if (one.index_behind_bytes) box.append(h("div", { class: "note" }, t("store.index_behind", { bytes: format.bytes(one.index_behind_bytes) })));
    return box;
  }
  function segmentCard(one) {
    const rules = facts([
      [t("store.log_offsets"), one.log_begin === null ? "–" : h("span", { class: "number wrap" }, `${format.count(one.log_begin)} – ${format.count(one.log_end)}`)],
      [t("store.segment_bytes"), format.bytes(one.segment_bytes)],
      [t("store.delete_when"), one.delete_when ? t("store.hours", { hours: one.delete_when.split(";").map((hour) => `${hour}:00`).join(", ") }) : "–"],
      [t("store.clean_at"), one.clean_at_ratio === null ? "–" : one.clean_at_ratio >= 100 ? t("store.never") : `${one.clean_at_ratio}%`],
      [t("store.oldest"), one.earliest_ms ? format.time(one.earliest_ms).slice(0, 19) : "–"],
      [t("store.unflushed"), one.flush_behind ?? "–"],
    ]);
    if (one.segments === null) return card(t("store.retention"), h("div", { class: "stack" }, rules, h("p", { class: "muted" }, t(one.own ? "store.no_segments" : "store.segments_unknown"))));
    const all = one.segments.map((segment, i) => ({ ...segment, last: i === one.segment_count - 1 }));
    segments.update(all);
    const more = one.segment_count > all.length ? h("p", { class: "muted" }, t("store.more_segments", { count: one.segment_count - all.length })) : null;
    return card(t("store.retention"), h("div", { class: "stack" }, rules, h("p", { class: "muted small" }, t("store.rule")), segments.element, more));
  }
  return { element, show };
}
