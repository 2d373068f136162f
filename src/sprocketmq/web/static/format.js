// Numbers, sizes and times as text. null and undefined are shown as a dash: "the broker does not report it".

import { currentLanguage, t } from "./i18n.js";

const DASH = "–";
const missing = (value) => value === null || value === undefined || Number.isNaN(value);
const locale = () => (currentLanguage() === "zh" ? "zh-CN" : "en-US");

export function count(value) {
  return missing(value) ? DASH : Math.round(value).toLocaleString(locale());
}

// 1,234 below ten thousand, then 12.3k, 4.56M.
export function short(value) {
  if (missing(value)) return DASH;
  for (const [size, unit] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e4, "k"]]) {
    if (Math.abs(value) >= size) {
      const scaled = value / (unit === "k" ? 1e3 : size);
      return `${scaled.toFixed(scaled >= 100 ? 0 : scaled >= 10 ? 1 : 2)}${unit}`;
    }
  }
  return value.toLocaleString(locale(), { maximumFractionDigits: Math.abs(value) < 10 ? 1 : 0 });
}

export function rate(value) {
  return missing(value) ? DASH : `${short(value)}/s`;
}

export function bytes(value) {
  if (missing(value)) return DASH;
  let unit = 0;
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  while (Math.abs(value) >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit === 0 ? Math.round(value) : value.toFixed(value >= 100 ? 0 : 1)} ${units[unit]}`;
}

export function percent(value) {
  return missing(value) ? DASH : `${(value * 100).toFixed(value < 0.1 ? 1 : 0)}%`;
}

// "3 d 4 h", "5 min", "12 s", "40 ms".
export function duration(ms) {
  if (missing(ms)) return DASH;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const parts = [];
  let rest = Math.floor(ms / 1000);
  for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]]) {
    const n = Math.floor(rest / size);
    rest -= n * size;
    if (n) parts.push(`${n} ${t(`unit.${unit}`)}`);
    if (parts.length === 2 || (parts.length && !n)) break;
  }
  return parts.join(" ");
}

export function ago(timeMs) {
  return missing(timeMs) || timeMs <= 0 ? DASH : t("time.ago", { time: duration(Math.max(0, Date.now() - timeMs)) });
}

export function time(timeMs) {
  return missing(timeMs) || timeMs <= 0 ? DASH : `${day(timeMs)} ${clock(timeMs)}.${String(timeMs % 1000).padStart(3, "0")}`;
}

// Where there is little room: without the day when it is today, else without the milliseconds.
export function shortTime(timeMs) {
  if (missing(timeMs) || timeMs <= 0) return DASH;
  return day(timeMs) === day(Date.now()) ? time(timeMs).split(" ")[1] : time(timeMs).slice(0, 16);
}

function day(timeMs) {
  const date = new Date(timeMs);
  return [date.getFullYear(), date.getMonth() + 1, date.getDate()].map((n) => String(n).padStart(2, "0")).join("-");
}

export function clock(timeMs) {
  const date = new Date(timeMs);
  return [date.getHours(), date.getMinutes(), date.getSeconds()].map((n) => String(n).padStart(2, "0")).join(":");
}
