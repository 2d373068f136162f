// Texts in the viewer's language: `t("topics.title")`, `t("overview.brokers", { count: 3 })`.

export const LANGUAGES = { en: "English", zh: "中文" };

let language = "en";
let texts = {};

function chosen() {
  const kept = localStorage.getItem("language");
  if (kept in LANGUAGES) return kept;
  return navigator.language.toLowerCase().startsWith("zh") ? "zh" : "en";
}

export async function loadTexts() {
  language = chosen();
  document.documentElement.lang = language === "zh" ? "zh-CN" : "en";
  const answer = await fetch(`/static/i18n/${language}.json`);
  texts = await answer.json();
}

export function currentLanguage() {
  return language;
}

export function setLanguage(name) {
  localStorage.setItem("language", name);
  location.reload();
}

// A text with {name} in it gets the values; a key without a text is shown as it is.
export function t(key, values = {}) {
  const text = Object.hasOwn(texts, key) ? texts[key] : key;
  return text.replace(/\{(\w+)\}/g, (all, name) => (Object.hasOwn(values, name) ? String(values[name]) : all));
}

export function has(key) {
  return Object.hasOwn(texts, key);
}
