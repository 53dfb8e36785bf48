// The controllers: writes and their budget, conflicts, throttling, and how much work waits.

// @ts-check

import { settings } from "./api.js";
import { figure, perSecond, rates } from "./chart.js";
import { h } from "./dom.js";
import { store } from "./store.js";
import { empty, header, section, table, tile } from "./ui.js";

/** Writes that a warm claim may cost with the replacement and the deletion of its sandbox (docs/performance.md). */
const BUDGET = 9;

export function controllersPage() {
  return {
    title: "Controllers",
    draw: () => [header("Controllers", null, "What the control plane writes, and what waits for it."), content()],
  };
}

function content() {
  const samples = store.samples.filter((sample) => sample.metrics);
  const latest = samples.at(-1)?.metrics;
  if (!latest) {
    return section(
      "Metrics",
      settings.metrics
        ? empty("No metrics yet", "The metrics page of the controllers has not answered.")
        : empty("No metrics", "This dashboard does not know where the controllers serve their metrics.", h("pre", { class: "command" }, "sandpool dashboard --metrics-url http://127.0.0.1:8080/metrics")),
      null,
      "metrics",
    );
  }
  const writes = rates(samples, (sample) => sample.metrics.writes);
  const conflicts = rates(samples, (sample) => sample.metrics.conflicts);
  const depth = samples.map((sample) => total(sample.metrics.depth));
  const first = samples[0].metrics;
  const claims = latest.claims - first.claims;
  return [
    h(
      "div",
      { class: "tiles", key: "tiles" },
      tile("Writes", Math.round(latest.writes).toLocaleString("en"), "since the controllers started"),
      tile("Writes per second", perSecond(writes.at(-1)), "now"),
      tile("Writes per claim", claims > 0 ? ((latest.writes - first.writes) / claims).toFixed(1) : "–", `budget ${BUDGET} with the replacement; filling a pool adds to it`),
      tile("Conflicts", latest.conflicts.toLocaleString("en"), latest.conflicts ? "updates that another writer was ahead of" : "none: no update was in vain"),
      tile("Throttled", latest.throttled.toLocaleString("en"), latest.throttled ? "requests that the API asked to slow down" : "none"),
      tile("Waiting keys", total(latest.depth).toLocaleString("en"), "in all work queues"),
    ),
    h(
      "div",
      { class: "figures", key: "figures" },
      figure("Writes per second", perSecond(writes.at(-1)), { values: writes, label: "Writes per second over time", most: 1, show: perSecond }, samples),
      figure("Conflicts per second", perSecond(conflicts.at(-1)), { values: conflicts, label: "Conflicts per second over time", most: 1, tone: "bad", show: perSecond }, samples),
      figure("Queue depth", String(total(latest.depth)), { values: depth, label: "Keys in all work queues over time", most: 4, tone: "waiting" }, samples),
    ),
    section(
      "Work queues",
      table(
        "queues",
        [
          ["Controller", (row) => row.key],
          ["Waiting keys", (row) => row.depth.toLocaleString("en"), "number"],
        ],
        Object.entries(latest.depth).map(([key, value]) => ({ key, depth: value })),
        () => {},
      ),
      null,
      "queues",
    ),
  ];
}

/** @param {Record<string, number>} depth */
function total(depth) {
  return Object.values(depth).reduce((sum, each) => sum + each, 0);
}
