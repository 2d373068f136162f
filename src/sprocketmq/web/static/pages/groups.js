// Groups: the list of all, or one of them with its members and queues, and resets with a preview.

import { backLink, badge, card, clear, confirmTyped, dialog, errorNotice, facts, format, get, h, link, load, notice, pageHead, post, stat, t, table, toast } from "../ui.js";
import { figureCells, poll, reasons, unknown } from "../polling.js";

const REFRESH_MS = 10000;
const DETAIL_MS = 5000;

export async function mount(root, context) {
  const name = context.params.get("group");
  if (name) await showGroup(root, context, name);
  else await showList(root, context);
}

const or = (value, reason, text) => (value === null || value === undefined ? unknown(reason) : text(value));
const seconds = (value) => (value ? format.duration(value * 1000) : `0 ${t("unit.s")}`);
const upTo = (value) => (value ? t("groups.up_to", { time: seconds(value) }) : seconds(0));

function lagText(figures, why) {
  return or(figures.lag, why, (lag) => h("span", { title: figures.partial ? why : null }, figures.partial ? t("groups.at_least", { count: format.short(lag) }) : format.short(lag)));
}

function catchUp(figures) {
  if (figures.lag === 0) return t("groups.caught_up");
  if (figures.stored_per_s === null || figures.stored_per_s === undefined) return unknown(t("groups.no_rates"));
  return figures.catch_up_s === null ? badge(t("groups.never"), "warn") : seconds(figures.catch_up_s);
}

// --- the list ---

async function showList(root, context) {
  const figures = figureCells(context, "/api/groups/figures", "groups", REFRESH_MS);
  let rows = [];
  const figure = (row, draw) => figures.cell(row.name, (found) => draw(found, reasons(found.unknown).join("; ")));
  const value = (name) => (row) => figures.known(row.name)?.[name];
  const all = h("button", { type: "button", class: "quiet", onclick: () => loadAll() }, t("groups.load_all"));
  const system = h("input", { type: "checkbox", onchange: () => filter() });
  const list = table({
    label: t("page.groups"),
    columns: [
      { key: "name", title: t("groups.name"), value: (row) => row.name, render: (row) => h("span", { class: "wrap" }, link("/groups", { group: row.name }, row.name)), width: "30%" },
      { key: "members", title: t("groups.members"), value: value("members"), render: (row) => figure(row, (found, why) => or(found.members, why, members)), right: true },
      { key: "lag", title: t("groups.lag"), value: value("lag"), render: (row) => figure(row, lagText), right: true },
      { key: "behind", title: t("groups.behind"), value: value("behind_s_most"), render: (row) => figure(row, (found) => or(found.behind_s_most, t("groups.no_time"), upTo)), right: true, narrow: false },
      { key: "rate", title: t("groups.rate"), value: value("consumed_per_s"), render: (row) => figure(row, (found, why) => or(found.consumed_per_s, why, format.rate)), right: true, narrow: false },
      { key: "catch_up", title: t("groups.catch_up"), value: value("catch_up_s"), render: (row) => figure(row, catchUp), right: true, narrow: false },
      { key: "retry", title: t("groups.retries"), value: value("retry_lag"), render: (row) => figure(row, (found, why) => or(found.retry_lag, why, format.short)), right: true, narrow: false },
      { key: "dead", title: t("groups.dead_letters"), value: value("dead_letters"), render: (row) => figure(row, (found) => or(found.dead_letters, t("groups.no_dead"), format.short)), right: true, narrow: false },
    ],
    key: (row) => row.name,
    text: (row) => row.name,
    open: (row) => ["/groups", { group: row.name }],
    sort: ["name", "ascending"],
    empty: t("groups.empty"),
    tools: [h("label", { class: "row nowrap" }, system, t("groups.system")), all],
  });
  const notices = h("div", { class: "stack" });
  let names = null;
  async function refresh() {
    const found = await get("/api/groups");
    const missing = reasons(found.missing);
    clear(notices, missing.length ? notice("warn", h("p", {}, t("groups.partial")), missing.map((text) => h("p", { class: "wrap" }, text))) : null);
    const now = found.groups.map((row) => `${row.name} ${row.enabled}`).join("\n");
    if (now === names) return;
    names = now;
    rows = found.groups;
    filter();
  }
  function filter() {
    list.update(system.checked ? rows : rows.filter((row) => row.kind !== "system"));
  }
  async function loadAll() {
    all.disabled = true;
    const shown = list.shown.map((row) => row.name);
    await figures.all(shown, (done) => (all.textContent = t("groups.loaded", { done, all: shown.length })));
    all.disabled = false;
    all.textContent = t("groups.load_all");
    filter();
  }
  await refresh();
  root.append(h("div", { class: "stack" }, pageHead(t("page.groups")), notices, list.element));
  poll(context, refresh, 2 * REFRESH_MS);
}

function members(count) {
  return count ? format.count(count) : badge(t("groups.offline"), "warn");
}

// --- one group ---

async function showGroup(root, context, name) {
  const place = h("div", { class: "stack" });
  const notices = h("div", { class: "stack" });
  const parts = { stats: h("div", { class: "grid six" }), members: h("div", { class: "stack tight" }), queues: h("div", { class: "stack tight" }), more: h("div", { class: "grid wide" }), head: h("span", { class: "row" }) };
  let known = null;
  const reset = context.readOnly ? [] : [h("button", { onclick: () => resetGroup(known, () => refresh().catch((error) => clear(notices, errorNotice(error)))) }, t("groups.reset"))];
  const buttons = h("div", { class: "row" }, reset);

  const queues = table({
    label: t("groups.queues"),
    columns: [
      { key: "topic", title: t("groups.topic"), value: (row) => row.topic, render: (row) => h("span", { class: "wrap" }, link("/topics", { topic: row.topic }, row.topic)), width: "20%" },
      { key: "queue", title: t("groups.queue"), value: (row) => `${row.broker} ${row.queue}`, render: (row) => h("span", { class: "wrap" }, `${row.broker} · ${row.queue}`) },
      { key: "owner", title: t("groups.owner"), value: (row) => row.owner ?? "", render: (row) => owner(row), width: "22%" },
      { key: "committed", title: t("groups.committed"), value: (row) => row.committed, render: (row) => format.count(row.committed), right: true, narrow: false },
      { key: "end", title: t("groups.end"), value: (row) => row.end, render: (row) => format.count(row.end), right: true, narrow: false },
      { key: "lag", title: t("groups.lag"), value: (row) => row.lag, render: (row) => format.count(row.lag), right: true },
      { key: "behind", title: t("groups.behind"), value: (row) => row.behind_s, render: (row) => or(row.behind_s, t("groups.not_read"), seconds), right: true, narrow: false },
      { key: "in_flight", title: t("groups.in_flight"), value: (row) => row.in_flight, render: (row) => format.count(row.in_flight), right: true, narrow: false },
    ],
    key: (row) => `${row.topic} ${row.broker} ${row.queue}`,
    empty: t("groups.no_queues"),
    sort: ["lag", "descending"],
  });
  function owner(row) {
    if (row.owner) return h("span", { class: "tail mono small", title: row.owner }, h("bdi", {}, row.owner));
    if (known?.members === 0) return h("span", { class: "muted" }, "–");
    const silent = known?.member_rows.some((member) => member.problem);
    return silent ? unknown(t("groups.silent")) : badge(t("groups.nobody"), "warn");
  }

  const membersTitle = h("h2", {});
  const members = memberTable(() => t(known?.members === null ? "groups.members_unknown" : "groups.no_members"));
  parts.members.append(membersTitle, members.element);
  const moreQueues = h("p", { class: "muted" });
  parts.queues.append(h("h2", {}, t("groups.queues")), queues.element, moreQueues);

  async function refresh() {
    const group = await get("/api/group", { group: name });
    draw(group);
  }
  function draw(group) {
    known = group;
    const why = reasons(group.unknown);
    const told = (value, text) => or(value, why.join("; "), text);
    const lost = group.queue_rows.reduce((sum, row) => sum + (row.expired_unread ?? 0), 0);
    clear(
      notices,
      why.length ? notice("warn", h("p", {}, t("groups.partial")), why.map((text) => h("p", { class: "wrap" }, text))) : null,
      group.enabled === false ? notice("warn", t("groups.disabled")) : null,
      lost ? notice("bad", t("groups.expired", { count: format.count(lost) })) : null,
    );
    clear(parts.head, group.members === 0 ? badge(t("groups.offline"), "warn") : null, group.orderly ? badge(t("groups.orderly")) : null);
    clear(
      parts.stats,
      stat(t("groups.lag"), lagText(group, why.join("; ")), t("groups.lag_note")),
      stat(t("groups.behind"), or(group.behind_s, t("groups.not_read"), seconds), t("groups.behind_note")),
      stat(t("groups.rate"), told(group.consumed_per_s, format.rate), group.stored_per_s === null ? "" : t("groups.stored", { rate: format.rate(group.stored_per_s) })),
      stat(t("groups.catch_up"), catchUp(group), t("groups.catch_up_note")),
      stat(t("groups.retries"), told(group.retry_lag, format.count), t("groups.retries_note")),
      stat(t("groups.dead_letters"), or(group.dead_letters, t("groups.no_dead"), format.count), group.dead_letters ? link("/dead-letters", { group: group.name }, t("groups.show_dead")) : ""),
    );
    clear(membersTitle, t("groups.members_title", { count: group.members ?? "?" }));
    members.update(group.member_rows);
    queues.update(group.queue_rows);
    clear(moreQueues, group.more_queues ? t("groups.more_queues", { count: group.more_queues }) : "");
    clear(parts.more, subscriptions(group), settings(group));
  }

  root.append(place);
  await load(place, () => get("/api/group", { group: name }), (group) => {
    draw(group);
    poll(context, again, DETAIL_MS);
    return [
      h("div", {}, backLink("/groups", {}, t("page.groups"))),
      pageHead(h("span", { class: "wrap" }, name), { note: parts.head, actions: [buttons] }),
      notices,
      parts.stats,
      parts.members,
      parts.queues,
      parts.more,
    ];
  });
  async function again() {
    try {
      await refresh();
    } catch (error) {
      if (error.kind !== "GroupNotFound") throw error;
      clear(notices, notice("warn", t("groups.gone", { group: name })));
      buttons.remove();
      return false;
    }
    return true;
  }
}

function memberTable(empty) {
  return table({
    label: t("groups.members"),
    columns: [
      { key: "client", title: t("groups.client"), value: (row) => row.client_id, render: (row) => h("span", { class: "wrap mono small" }, row.client_id), width: "34%" },
      { key: "address", title: t("groups.address"), value: (row) => row.address, narrow: false },
      { key: "language", title: t("groups.language"), value: (row) => row.language, narrow: false },
      { key: "queues", title: t("groups.queues"), value: (row) => row.queues, render: (row) => or(row.queues, row.problem, format.count), right: true },
      { key: "waiting", title: t("groups.waiting"), value: (row) => row.waiting, render: (row) => or(row.waiting, row.problem, format.count), right: true },
      { key: "rate", title: t("groups.rate"), value: (row) => row.handled_per_s, render: (row) => format.rate(row.handled_per_s), right: true, narrow: false },
      { key: "handler", title: t("groups.handler"), value: (row) => row.handler_ms, render: (row) => format.duration(row.handler_ms), right: true, narrow: false },
    ],
    key: (row) => row.client_id,
    empty,
  });
}

function subscriptions(group) {
  const rows = group.subscriptions.map((one) => [h("span", { class: "wrap" }, link("/topics", { topic: one.topic }, one.topic)), h("code", { class: "wrap" }, one.expression)]);
  return card(t("groups.subscriptions"), rows.length ? facts(rows) : h("p", { class: "muted" }, t("groups.no_subscriptions")));
}

function settings(group) {
  const yes = (value) => t(value ? "groups.yes" : "groups.no");
  return card(
    t("groups.settings"),
    h("div", { class: "stack" }, group.settings.map((one) =>
      facts([
        [t("groups.broker"), h("strong", { class: "wrap" }, one.broker)],
        [t("groups.enabled"), yes(one.enabled)],
        [t("groups.broadcast"), yes(one.broadcast)],
        [t("groups.orderly"), yes(one.orderly)],
        [t("groups.retry_queues"), format.count(one.retry_queues)],
        [t("groups.max_retries"), format.count(one.max_retries)],
      ]),
    )),
  );
}

// --- resets ---

async function resetGroup(group, changed) {
  const own = group.topics.length ? group.topics : group.subscriptions.map((one) => one.topic);
  const topic = h("input", { required: true, value: own[0] ?? "", list: "reset-topics", spellcheck: "false", maxlength: "255" });
  const known = h("datalist", { id: "reset-topics" }, own.map((name) => h("option", { value: name })));
  const to = h("select", {}, ["first", "last", "time"].map((name) => h("option", { value: name }, t(`groups.reset.${name}`))));
  const when = h("input", { type: "datetime-local", step: "1" });
  const timeField = h("label", { class: "field hidden" }, h("span", {}, t("groups.reset_time")), when);
  to.addEventListener("change", () => {
    timeField.classList.toggle("hidden", to.value !== "time");
    when.required = to.value === "time";
  });
  const preview = await dialog({
    title: t("groups.reset_title"),
    content: [h("label", { class: "field" }, h("span", {}, t("groups.topic")), topic), known, h("label", { class: "field" }, h("span", {}, t("groups.reset_to")), to), timeField],
    buttons: [
      { text: t("action.cancel"), value: false },
      {
        text: t("groups.preview"),
        kind: "primary",
        act: () => {
          const time_ms = to.value === "time" ? new Date(when.value).getTime() : null;
          return get("/api/group/preview", { group: group.name, topic: topic.value.trim(), to: to.value, time_ms: Number.isNaN(time_ms) ? "" : time_ms });
        },
      },
    ],
  });
  if (!preview) return;
  const offsets = preview.queues.map(({ broker, queue, offset }) => ({ broker, queue, offset }));
  const done = await confirmTyped({
    title: t("groups.reset_title"),
    text: previewed(preview),
    word: group.name,
    action: t("groups.reset"),
    act: () => post("/api/group/reset", { group: group.name, topic: preview.topic, offsets, confirm: group.name }),
  });
  if (done) {
    toast(t("groups.was_reset", { group: group.name, topic: preview.topic }));
    await changed();
  }
}

function previewed(preview) {
  const list = table({
    label: t("groups.preview"),
    columns: [
      { key: "queue", title: t("groups.queue"), value: (row) => `${row.broker} ${row.queue}`, render: (row) => `${row.broker} · ${row.queue}` },
      { key: "committed", title: t("groups.committed"), value: (row) => row.committed, render: (row) => format.count(row.committed), right: true },
      { key: "offset", title: t("groups.new_offset"), value: (row) => row.offset, render: (row) => format.count(row.offset), right: true },
      { key: "moves", title: t("groups.moves"), value: (row) => row.moves, render: (row) => (row.moves === null ? "–" : `${row.moves > 0 ? "+" : ""}${format.count(row.moves)}`), right: true },
    ],
    key: (row) => `${row.broker} ${row.queue}`,
  });
  list.update(preview.queues);
  return h(
    "div",
    { class: "stack" },
    h("p", {}, t("groups.preview_text", { group: preview.group, topic: preview.topic })),
    h("p", {}, h("strong", {}, t("groups.preview_moves", { again: format.count(preview.again), skipped: format.count(preview.skipped) }))),
    preview.never_committed ? h("p", { class: "muted" }, t("groups.never_committed", { count: preview.never_committed })) : null,
    preview.online ? notice("warn", t("groups.reset_online")) : null,
    list.element,
  );
}
