// The start: who looks, in which language, and which page.

import { configure, get, post } from "./api.js";
import { address, clear, h, icon } from "./dom.js";
import { LANGUAGES, currentLanguage, loadTexts, setLanguage, t } from "./i18n.js";
import { navigate, startRouter } from "./router.js";
import { errorNotice, loading, sentence, stream, toast } from "./ui.js";

const PAGES = JSON.parse(document.getElementById("pages").textContent);
const THEMES = ["system", "light", "dark"];
let leave = null;
let visit = 0;
let routed = false;

function applyTheme(name) {
  if (name === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
}

function theme() {
  const kept = localStorage.getItem("theme");
  return THEMES.includes(kept) ? kept : "system";
}

async function start() {
  applyTheme(theme());
  await loadTexts();
  let session;
  try {
    session = await get("/api/session");
  } catch (error) {
    clear(document.body, h("div", { class: "login" }, errorNotice(error, () => location.reload())));
    return;
  }
  configure(session, () => location.reload());
  if (session.user === null) showLogin();
  else showFrame(session);
}

function showLogin() {
  document.title = `${t("login.title")} · SprocketMQ`;
  const access = h("input", { name: "access_key", autocomplete: "username", required: true, autofocus: true, spellcheck: "false" });
  const secret = h("input", { name: "secret_key", type: "password", autocomplete: "current-password", required: true });
  const problem = h("div", {});
  const button = h("button", { class: "primary", type: "submit" }, t("login.action"));
  const form = h(
    "form",
    { class: "card" },
    h("div", { class: "brand" }, h("img", { src: "/static/icon.svg", alt: "" }), "SprocketMQ"),
    h("p", { class: "muted" }, t("login.text")),
    h("label", { class: "field" }, t("login.access_key"), access),
    h("label", { class: "field" }, t("login.secret_key"), secret),
    problem,
    button,
  );
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    button.disabled = true;
    try {
      await post("/api/login", { access_key: access.value, secret_key: secret.value });
      location.reload();
    } catch (error) {
      clear(problem, errorNotice(error));
      button.disabled = false;
      secret.select();
    }
  });
  clear(document.body, h("main", { class: "login" }, form));
  access.focus();
}

function showFrame(session) {
  const live = h("span", { class: "live", role: "status" }, t("live.waiting"));
  const links = PAGES.map((page) => h("a", { href: page.path, "data-page": page.name }, icon(page.name), t(`page.${page.name}`)));
  const side = h(
    "aside",
    { class: "side", id: "navigation" },
    h("a", { class: "brand", href: "/" }, h("img", { src: "/static/icon.svg", alt: "" }), "SprocketMQ"),
    h("nav", { "aria-label": t("nav.label") }, links),
    h(
      "div",
      { class: "foot" },
      h("div", { class: "wrap" }, session.namesrv),
      h("div", { class: "row" }, live, session.read_only ? h("span", { class: "badge" }, t("state.read_only")) : null),
      session.user ? h("div", { class: "row" }, h("span", { class: "wrap" }, session.user), logoutButton()) : null,
      h("div", { class: "row" }, languageButton(), themeButton()),
    ),
  );
  const main = h("main", { class: "main", id: "main", tabindex: "-1" });
  const menu = h("button", { class: "icon-only menu-button", "aria-label": t("nav.menu"), "aria-expanded": "false", "aria-controls": "navigation" }, icon("menu"));
  const toggle = (open) => {
    side.classList.toggle("open", open);
    menu.setAttribute("aria-expanded", String(open));
    if (open) links[0].focus();
  };
  menu.addEventListener("click", (event) => {
    event.stopPropagation();
    toggle(!side.classList.contains("open"));
  });
  document.addEventListener("click", (event) => {
    if (!side.contains(event.target) || event.target.closest("a")) toggle(false);
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && side.classList.contains("open")) {
      toggle(false);
      menu.focus();
    }
    const typing = event.target.closest?.("input, textarea, select, dialog");
    if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey) {
      const search = main.querySelector("input[type=search]");
      if (search) {
        event.preventDefault();
        search.focus();
      }
    }
  });
  const brand = h("a", { class: "brand", href: "/" }, h("img", { src: "/static/icon.svg", alt: "" }), "SprocketMQ");
  clear(
    document.body,
    h("a", { class: "skip", href: "#main" }, t("nav.skip")),
    h("div", { class: "topbar" }, brand, menu),
    h("div", { class: "frame" }, side, main),
  );
  const context = { session, live: (state) => showLive(live, state) };
  if (!routed) startRouter(() => showPage(main, links, context));
  routed = true;
}

function showLive(live, state) {
  live.dataset.state = state;
  live.textContent = t(`live.${state}`);
}

async function showPage(main, links, { session, live }) {
  const mine = ++visit;
  await leave?.();
  leave = null;
  const page = PAGES.find((one) => one.path === location.pathname) ?? PAGES[0];
  for (const link of links) {
    if (link.dataset.page === page.name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${t(`page.${page.name}`)} · SprocketMQ`;
  live("waiting");
  const root = h("div", { class: `page page-${page.name}` }, loading());
  clear(main, root);
  window.scrollTo(0, 0);
  main.focus({ preventScroll: true });
  try {
    const module = await import(`./pages/${page.name}.js`);
    if (mine !== visit) return;
    clear(root);
    const closing = [];
    const context = {
      params: new URLSearchParams(location.search),
      readOnly: session.read_only,
      user: session.user,
      live, // "open" or "lost", for pages that ask again instead
      // A stream that ends with the page and shows whether it is open.
      stream: (path, query, handlers) => closing.push(stream(path, query, { ...handlers, state: live })),
      onLeave: (action) => closing.push(action),
    };
    leave = () => closing.splice(0).forEach((action) => action());
    const ended = await module.mount(root, context);
    if (ended) closing.push(ended);
    if (mine !== visit) closing.splice(0).forEach((action) => action());
  } catch (error) {
    if (mine === visit) clear(root, errorNotice(error, () => navigate(address(location.pathname) + location.search, { replace: true })));
  }
}

function logoutButton() {
  const leaveSession = async () => {
    try {
      await post("/api/logout");
    } catch (error) {
      toast(sentence(error), "bad");
    }
    location.assign("/");
  };
  return h("button", { class: "quiet icon-only", title: t("login.logout"), "aria-label": t("login.logout"), onclick: leaveSession }, icon("logout"));
}

function themeButton() {
  const button = h("button", { class: "quiet", onclick: () => turn() }, icon("theme"), h("span", {}, t(`theme.${theme()}`)));
  button.setAttribute("aria-label", t("theme.label", { theme: t(`theme.${theme()}`) }));
  function turn() {
    const next = THEMES[(THEMES.indexOf(theme()) + 1) % THEMES.length];
    localStorage.setItem("theme", next);
    applyTheme(next);
    button.lastElementChild.textContent = t(`theme.${next}`);
    button.setAttribute("aria-label", t("theme.label", { theme: t(`theme.${next}`) }));
  }
  return button;
}

function languageButton() {
  const other = Object.keys(LANGUAGES).find((name) => name !== currentLanguage());
  return h("button", { class: "quiet", lang: other, onclick: () => setLanguage(other) }, icon("language"), LANGUAGES[other]);
}

start();
