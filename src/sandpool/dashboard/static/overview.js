// The first page: is everything well, what needs attention, and how the pools do.

// @ts-check

import { figure, perSecond, rates } from "./chart.js";
import { openClaimForm } from "./claims.js";
import { h } from "./dom.js";
import { age, counted, milliseconds, percent, quantile } from "./format.js";
import { createCommands, poolTable } from "./pools.js";
import { all, changed, claimState, launches, nodeState, poolProblem, poolState, sandboxState, store } from "./store.js";
import { badge, changeButton, empty, header, nameLink, section, table, tile, timeToReady, TIME_TO_READY } from "./ui.js";

const RECENT = 8;
const ATTENTION = 8;

export function overviewPage() {
  return { title: "Overview", draw };
}

function draw() {
  const pools = all("pools");
  const claims = all("claims");
  const sandboxes = all("sandboxes");
  const trouble = attention(pools, claims, sandboxes);
  return [
    header("Overview", pools.length > 0 && changeButton("Claim a sandbox", () => openClaimForm(), { kind: "primary", symbol: "plus" })),
    tiles(pools, claims, sandboxes),
    trouble.length > 0 && section("Needs attention", attentionTable(trouble), null, "attention"),
    charts(),
    h("div", { class: "columns", key: "columns" }, pools.length
      ? section("Pools", poolTable(pools), null, "pools")
      : section("Pools", empty("No pools yet", "A pool keeps sandboxes warm, so that a claim takes milliseconds. Make the first one:", createCommands()), null, "pools"),
    claims.length > 0 && section("Recent claims", recent(claims), h("a", { href: "/claims" }, `All ${counted(claims.length, "claim")}`), "recent")),
  ];
}

/** @param {any[]} pools @param {any[]} claims @param {any[]} sandboxes */
function tiles(pools, claims, sandboxes) {
  const ready = claims.filter((claim) => claim.ready).length;
  const waiting = claims.filter((claim) => !claim.sandbox && !claim.deleting).length;
  const warm = pools.reduce((sum, pool) => sum + pool.ready, 0);
  const desired = pools.reduce((sum, pool) => sum + pool.desired, 0);
  const latencies = claims.map((claim) => claim.latency).filter((each) => each !== null);
  const { warm: hits, cold: misses, rate } = launches();
  const nodes = all("nodes");
  return h(
    "div",
    { class: "tiles", key: "tiles" },
    tile("Claims", claims.length.toLocaleString("en"), waiting ? `${ready} ready, ${waiting} waiting` : claims.length ? "all served" : "none yet"),
    tile("Warm sandboxes", [warm.toLocaleString("en"), h("span", { class: "of" }, ` / ${desired.toLocaleString("en")}`)], counted(sandboxes.length, "sandbox") + " in all"),
    tile("Warm starts", percent(rate), hits + misses ? `${hits} warm, ${misses} cold` : "no claims yet"),
    tile("Time to ready", h("span", { title: TIME_TO_READY }, milliseconds(quantile(latencies, 0.5))), latencies.length ? `median · p95 ${milliseconds(quantile(latencies, 0.95))}` : claims.length ? "not recorded yet" : "no claims yet"),
    tile("Nodes", nodes.length ? `${nodes.filter((node) => node.ready).length}` : "–", nodes.length ? (nodes.every((node) => node.ready) ? "all ready" : `of ${nodes.length} ready`) : "cannot be read"),
  );
}

/** Everything that is not well, the most urgent first. @param {any[]} pools @param {any[]} claims @param {any[]} sandboxes */
function attention(pools, claims, sandboxes) {
  const found = [];
  for (const node of all("nodes")) if (nodeState(node)[1] === "bad") found.push({ ...node, kind: "nodes", what: "Node", state: nodeState(node) });
  for (const pool of pools) if (poolState(pool)[1] === "bad") found.push({ ...pool, kind: "pools", what: "Pool", state: poolState(pool), message: poolProblem(pool) });
  for (const claim of claims) {
    const state = claimState(claim);
    const late = state[1] === "waiting" && Date.now() - Date.parse(claim.created) > 10_000;
    if (state[1] === "bad" || late) found.push({ ...claim, kind: "claims", what: "Claim", state });
  }
  for (const sandbox of sandboxes) {
    const state = sandboxState(sandbox);
    if (state[1] === "bad" && !sandbox.claim) found.push({ ...sandbox, kind: "sandboxes", what: "Sandbox", state });
  }
  return found.map((each) => ({ ...each, object: each.key, key: `${each.kind}:${each.key}` }));
}

/** @param {any[]} trouble */
function attentionTable(trouble) {
  return [
    table(
      "attention",
      [
        ["What", (row) => [h("span", { class: "quiet" }, `${row.what} `), row.kind === "nodes" ? row.name : nameLink(row.kind, row.namespace, row.name)], "fit"],
        ["State", (row) => badge(row.state), "fit"],
        ["Why", (row) => h("span", { class: "message" }, row.message || "No reason is known yet."), "wide"],
      ],
      trouble.slice(0, ATTENTION),
      changed,
    ),
    trouble.length > ATTENTION && h("p", { class: "more quiet" }, `and ${trouble.length - ATTENTION} more`),
  ];
}

function charts() {
  const samples = store.samples;
  const sum = (/** @type {any} */ sample, /** @type {number} */ index) => Object.values(sample.pools).reduce((total, values) => total + values[index], 0);
  const ready = samples.map((sample) => sum(sample, 0));
  const desired = samples.map((sample) => sum(sample, 1));
  const held = samples.map((sample) => sum(sample, 4));
  const starts = rates(samples, (sample) => sum(sample, 6) + sum(sample, 7));
  return h(
    "div",
    { class: "figures", key: "figures" },
    figure("Warm sandboxes", String(ready.at(-1) ?? "–"), { values: ready, limits: desired, label: "Warm sandboxes over time, with the wanted number" }, samples),
    figure("Claimed sandboxes", String(held.at(-1) ?? "–"), { values: held, label: "Claimed sandboxes over time", most: 4 }, samples),
    figure("Claims per second", perSecond(starts.at(-1)), { values: starts, label: "Claims per second over time", most: 1, show: perSecond }, samples),
  );
}

/** @param {any[]} claims */
function recent(claims) {
  const newest = [...claims].sort((a, b) => b.created.localeCompare(a.created)).slice(0, RECENT);
  return table(
    "recent",
    [
      ["Claim", (claim) => nameLink("claims", claim.namespace, claim.name)],
      ["State", (claim) => badge(claimState(claim), claim.message)],
      ["Pool", (claim) => nameLink("pools", claim.namespace, claim.pool)],
      ["Time to ready", timeToReady, "number"],
      ["Age", (claim) => age(claim.created), "number"],
    ],
    newest,
    changed,
  );
}
