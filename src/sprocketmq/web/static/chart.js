// Lines over time: a sparkline for a cell of a table, a chart with a cursor for a card. Points are [time_ms, value]; null is a gap.

import { h, svg } from "./dom.js";
import * as format from "./format.js";

const WIDTH = 300;

function shapes(points, from, to, most, height) {
  const x = (time) => ((time - from) / (to - from || 1)) * WIDTH;
  const y = (value) => height - (most > 0 ? (value / most) * (height - 3) : 0) - 1;
  const runs = [];
  let run = [];
  for (const [time, value] of points) {
    if (value === null || value === undefined) {
      if (run.length) runs.push(run);
      run = [];
    } else run.push([x(time), y(value)]);
  }
  if (run.length) runs.push(run);
  const text = (pair) => `${pair[0].toFixed(1)},${pair[1].toFixed(1)}`;
  const line = runs.map((one) => `M${one.map(text).join("L")}${one.length === 1 ? "h0.1" : ""}`).join("");
  const area = runs.map((one) => `M${one[0][0].toFixed(1)},${height}L${one.map(text).join("L")}L${one.at(-1)[0].toFixed(1)},${height}Z`).join("");
  return [svg("path", { class: "area", d: area }), svg("path", { class: "line", d: line })];
}

// The time that lines show: up to the last hour, and not less than five minutes, so that the first samples are no cliff.
function span(points) {
  const to = points.length ? points.at(-1)[0] : Date.now();
  return [to - Math.min(3600000, Math.max(300000, points.length ? to - points[0][0] : 0)), to];
}

function largest(points) {
  return points.reduce((most, [, value]) => (value > most ? value : most), 0);
}

// `label` is read to those who do not see it.
export function sparkline(points, { label = "", kind = "", height = 26 } = {}) {
  const picture = svg("svg", { class: `spark ${kind}`, viewBox: `0 0 ${WIDTH} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": label });
  if (points.length) picture.append(...shapes(points, ...span(points), largest(points), height));
  return picture;
}

// Where the pointer is, and the chart that shows the value under it.
let pointer = null;
let pointed = null;

function pointAt(target) {
  if (pointed && !pointed.picture.contains(target)) {
    pointed.hide();
    pointed = null;
  }
}

document.addEventListener("pointermove", (event) => {
  pointer = { x: event.clientX, y: event.clientY };
  pointAt(event.target);
});
document.documentElement.addEventListener("pointerleave", () => {
  pointer = null;
  pointAt(null);
});

// `text` turns a value into text. The largest value is the top.
export function chart(points, { label = "", kind = "", height = 92, text = format.rate } = {}) {
  const [from, to] = span(points);
  const most = largest(points);
  const cursor = svg("line", { class: "cursor hidden", y1: 0, y2: height });
  const picture = svg(
    "svg",
    { viewBox: `0 0 ${WIDTH} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": label },
    svg("line", { class: "base", x1: 0, x2: WIDTH, y1: height, y2: height }),
    points.length ? shapes(points, from, to, most, height) : null,
    cursor,
  );
  const tip = h("div", { class: "tip hidden", "aria-hidden": "true" });
  const box = h("div", { class: `chart ${kind}` }, picture, tip);
  const marks = [from, (from + to) / 2, to].map((time) => h("span", {}, format.clock(time).slice(0, 5)));
  box.append(h("div", { class: "axis", "aria-hidden": "true" }, marks));
  const show = (clientX) => {
    const frame = picture.getBoundingClientRect();
    const time = from + ((clientX - frame.left) / frame.width) * (to - from);
    const near = points.reduce((best, point) => (best && Math.abs(best[0] - time) < Math.abs(point[0] - time) ? best : point), null);
    if (!near) return;
    const share = (near[0] - from) / (to - from);
    cursor.setAttribute("x1", share * WIDTH);
    cursor.setAttribute("x2", share * WIDTH);
    tip.textContent = `${format.clock(near[0])}  ${text(near[1])}`;
    tip.classList.remove("hidden");
    cursor.classList.remove("hidden");
    tip.style.left = `${Math.max(0, Math.min(share * frame.width - tip.offsetWidth / 2, frame.width - tip.offsetWidth))}px`;
    pointed = { picture, hide };
  };
  const hide = () => {
    tip.classList.add("hidden");
    cursor.classList.add("hidden");
  };
  picture.addEventListener("pointermove", (event) => show(event.clientX));
  // A refresh draws the chart anew, also under a pointer that rests.
  requestAnimationFrame(() => {
    if (pointer && picture.contains(document.elementFromPoint(pointer.x, pointer.y))) show(pointer.x);
  });
  return box;
}

// A bar for a share from 0 to 1.
export function meter(share, { warn = 0.75, bad = 0.85, label = "" } = {}) {
  const level = share >= bad ? "bad" : share >= warn ? "warn" : "";
  const percent = Math.max(0, Math.min(100, (share ?? 0) * 100));
  return h(
    "span",
    { class: `meter ${level}`, role: "meter", "aria-valuemin": 0, "aria-valuemax": 100, "aria-valuenow": Math.round(percent), "aria-label": label },
    h("span", { style: { width: `${percent}%` } }),
  );
}
