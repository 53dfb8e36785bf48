// Small charts over time, as SVG without a library.

// @ts-check

import { h } from "./dom.js";
import { clock } from "./format.js";

const WIDTH = 300;

/**
 * A line, with a filled area below it and, if given, a limit as a dashed line.
 * @param {number[]} values
 * @param {{height?: number, limits?: number[], label: string, most?: number, tone?: string}} options
 */
export function area(values, { height = 40, limits, label, most, tone = "accent" }) {
  const top = Math.max(1e-9, most ?? 0, ...values, ...(limits ?? []));
  const points = positions(values, top, height);
  const children = [];
  if (points.length > 1) {
    const line = points.map(([x, y]) => `${x},${y}`).join(" L");
    children.push(h("path", { class: "chart-area", d: `M${points[0][0]},${height} L${line} L${WIDTH},${height} Z` }));
    children.push(h("path", { class: "chart-line", d: `M${line}` }));
  }
  if (limits && limits.length > 1) {
    const line = positions(limits, top, height).map(([x, y]) => `${x},${y}`).join(" L");
    children.push(h("path", { class: "chart-limit", d: `M${line}` }));
  }
  return h(
    "svg",
    { class: `chart ${tone}`, viewBox: `0 -1 ${WIDTH} ${height + 2}`, preserveAspectRatio: "none", role: "img", "aria-label": label },
    ...children,
  );
}

/** @param {number[]} values @param {number} top @param {number} height */
function positions(values, top, height) {
  const step = WIDTH / Math.max(1, values.length - 1);
  return values.map((value, index) => [round(index * step), round(height - (value / top) * height)]);
}

/** @param {number} value */
const round = (value) => Math.round(value * 10) / 10;

/** A chart with its title, its current value and its time span. @param {string} title @param {string} value @param {any} chart @param {{at: number}[]} samples */
export function figure(title, value, chart, samples) {
  const enough = samples.length > 1;
  return h(
    "figure",
    { class: "figure" },
    h("figcaption", {}, h("span", {}, title), h("strong", {}, value)),
    enough ? chart : h("p", { class: "quiet small" }, "The line begins with the next samples."),
    enough && h("div", { class: "figure-axis" }, h("span", {}, clock(samples[0].at)), h("span", {}, "now")),
  );
}

/** The change of a counter per second, between each sample and the next. @param {{at: number}[]} samples @param {(sample: any) => number | undefined} of */
export function rates(samples, of) {
  const found = [];
  for (let index = 1; index < samples.length; index += 1) {
    const [before, now] = [of(samples[index - 1]), of(samples[index])];
    const seconds = samples[index].at - samples[index - 1].at;
    found.push(before === undefined || now === undefined || seconds <= 0 ? 0 : Math.max(0, (now - before) / seconds));
  }
  return found;
}
