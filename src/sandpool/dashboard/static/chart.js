// Small charts over time, as SVG without a library.

// @ts-check

import { h } from "./dom.js";
import { clock } from "./format.js";
import { changed } from "./store.js";

const WIDTH = 300;

/**
 * A line, with a filled area below it and, if given, a limit as a dashed line. It has gaps where a value is null.
 * @param {(number | null)[]} values
 * @param {{height?: number, limits?: number[], label: string, most?: number, tone?: string, hidden?: boolean, cursor?: number}} options
 * `cursor` is the index of a value that is marked
 */
export function area(values, { height = 40, limits, label, most, tone = "accent", hidden = false, cursor = -1 }) {
  const top = highest(values, limits, most);
  const children = [];
  for (const points of runs(values, top, height)) {
    const line = points.map(([x, y]) => `${x},${y}`).join(" L");
    children.push(h("path", { class: "chart-area", d: `M${points[0][0]},${height} L${line} L${points[points.length - 1][0]},${height} Z` }));
    children.push(h("path", { class: "chart-line", d: `M${line}` }));
  }
  for (const points of runs(limits ?? [], top, height)) {
    children.push(h("path", { class: "chart-limit", d: `M${points.map(([x, y]) => `${x},${y}`).join(" L")}` }));
  }
  if (cursor >= 0) {
    const x = round((cursor * WIDTH) / Math.max(1, values.length - 1));
    children.push(h("path", { class: "chart-cursor", d: `M${x},0 L${x},${height}` }));
  }
  const told = hidden ? { "aria-hidden": "true" } : { role: "img", "aria-label": label };
  return h("svg", { class: `chart ${tone}`, viewBox: `0 -1 ${WIDTH} ${height + 2}`, preserveAspectRatio: "none", ...told }, ...children);
}

/** The value at the top of a chart. @param {(number | null)[]} values @param {number[]} [limits] @param {number} [most] */
function highest(values, limits, most) {
  return Math.max(1e-9, most ?? 0, ...values.map((each) => each ?? 0), ...(limits ?? []));
}

/** Positions of values that follow one another without a gap. @param {(number | null)[]} values @param {number} top @param {number} height */
function runs(values, top, height) {
  const step = WIDTH / Math.max(1, values.length - 1);
  /** @type {[number, number][][]} */
  const found = [[]];
  values.forEach((value, index) => {
    if (value === null) found.push([]);
    else found[found.length - 1].push([round(index * step), round(height - (value / top) * height)]);
  });
  return found.filter((points) => points.length > 1);
}

/** @param {number} value */
const round = (value) => Math.round(value * 10) / 10;

/** The value that a pointer or the keyboard points at: the title of its chart, and how many values are after it. */
let pointed = { title: "", back: 0 };

/** @param {string} title @param {number} back */
function point(title, back) {
  pointed = { title, back };
  changed();
}

/**
 * A chart with its title, its current value, its scale and its time span. Pointing at it, or focusing it and pressing the arrow
 * keys, shows the value of a time.
 * @param {string} title @param {string} value
 * @param {{values: (number | null)[], label: string, show?: (value: number) => string, limits?: number[], most?: number, tone?: string, none?: string}} line
 * `none` is said while there is no value
 * @param {{at: number}[]} samples the times of the values
 */
export function figure(title, value, line, samples) {
  const { values, label, show = String, none = "There is nothing to show yet." } = line;
  const caption = h("figcaption", {}, h("span", {}, title), h("strong", {}, value));
  if (samples.length < 2) return h("figure", { class: "figure", key: title }, caption, h("p", { class: "quiet small" }, "The line begins with the next samples."));
  if (!values.some((each) => each !== null)) return h("figure", { class: "figure", key: title }, caption, h("p", { class: "quiet small" }, none));
  const last = values.length - 1;
  const cursor = pointed.title === title ? Math.max(0, last - pointed.back) : -1;
  // Rates lie between two samples, so there is one less of them.
  const time = (/** @type {number} */ index) => samples[samples.length - values.length + index].at;
  const at = cursor < 0 ? last : cursor;
  const told = `${values[at] === null ? "–" : show(/** @type {number} */ (values[at]))} at ${clock(time(at))}`;
  return h(
    "figure",
    { class: "figure", key: title },
    caption,
    h(
      "div",
      {
        class: "plot",
        tabindex: "0",
        role: "slider",
        "aria-label": label,
        "aria-valuemin": "0",
        "aria-valuemax": String(last),
        "aria-valuenow": String(at),
        "aria-valuetext": told,
        onfocus: () => point(title, 0),
        onblur: () => point("", 0),
        onpointerleave: () => point("", 0),
        onpointermove: (/** @type {PointerEvent} */ event) => {
          const box = /** @type {HTMLElement} */ (event.currentTarget).querySelector("svg")?.getBoundingClientRect();
          if (box) point(title, last - Math.max(0, Math.min(last, Math.round(((event.clientX - box.left) / box.width) * last))));
        },
        onkeydown: (/** @type {KeyboardEvent} */ event) => {
          /** @type {Record<string, number>} */
          const moves = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: last };
          if (!(event.key in moves)) return;
          event.preventDefault();
          point(title, last - Math.max(0, Math.min(last, moves[event.key])));
        },
      },
      h("div", { class: "plot-scale", "aria-hidden": "true" }, h("span", {}, show(highest(values, line.limits, line.most))), h("span", {}, "0")),
      area(values, { ...line, hidden: true, cursor }),
    ),
    h("div", { class: "figure-axis" }, h("span", {}, clock(samples[0].at)), cursor >= 0 && h("strong", { class: "plot-value" }, told), h("span", {}, "now")),
  );
}

/** How long the samples reach back, in words. @param {{at: number}[]} samples */
export function span(samples) {
  const minutes = samples.length ? Math.round((Date.now() / 1000 - samples[0].at) / 60) : 0;
  return minutes <= 1 ? "Last minute" : `Last ${minutes} minutes`;
}

/** A number per second. @param {number | null | undefined} rate */
export function perSecond(rate) {
  return rate === null || rate === undefined ? "–" : rate.toFixed(1);
}

/** The change of a counter per second, between each sample and the next; null where it is unknown. @param {{at: number}[]} samples @param {(sample: any) => number | undefined} of */
export function rates(samples, of) {
  /** @type {(number | null)[]} */
  const found = [];
  for (let index = 1; index < samples.length; index += 1) {
    const [before, now] = [of(samples[index - 1]), of(samples[index])];
    const seconds = samples[index].at - samples[index - 1].at;
    found.push(before === undefined || now === undefined || seconds <= 0 ? null : Math.max(0, (now - before) / seconds));
  }
  return found;
}
