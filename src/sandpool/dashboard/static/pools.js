// Pools: how full they are, how often they hit, and how far a rollout is.

// @ts-check

import { path, send } from "./api.js";
import { area, figure, perSecond, rates, span } from "./chart.js";
import { openClaimForm } from "./claims.js";
import { fill, h } from "./dom.js";
import { age, counted, percent } from "./format.js";
import { all, changed, claimState, launches, poolProblem, poolSeries, poolState, sandboxState, store } from "./store.js";
import { badge, changeButton, dialog, empty, facts, field, header, level, nameLink, namespaced, notice, section, select, table, toast } from "./ui.js";
import { whyCard } from "./why.js";

/** @type {[string, string][]} */
const STRATEGIES = [
  ["RollingUpdate", "Gradually: some sandboxes at a time"],
  ["Recreate", "At once: all idle sandboxes"],
  ["OnReplenish", "Only as they are claimed"],
];

/** What happens to the idle sandboxes of a pool when its template changes. @type {Record<string, string>} */
const EFFECTS = {
  RollingUpdate: "Idle sandboxes are replaced some at a time, so that most of the pool stays ready.",
  Recreate: "All idle sandboxes are deleted and made anew, so that for a while none is ready.",
  OnReplenish: "Idle sandboxes with the former template stay and are handed out to claims first. Only those that take their place have the new template.",
};

export function poolsPage() {
  return {
    title: "Pools",
    draw: () => {
      const pools = all("pools");
      return [
        header("Pools", null, "Warm sandboxes, ready before they are claimed."),
        pools.length ? section("All pools", poolTable(pools), null, "list") : section("All pools", empty("No pools yet", "Make a pool on the command line:", createCommands()), null, "list"),
      ];
    },
  };
}

/** How to make the first pool. */
export function createCommands() {
  return h("pre", { class: "command" }, "sandpool template create python --image sandpool.local/python\nsandpool pool create python --size 3");
}

/** @param {any[]} pools */
export function poolTable(pools) {
  return table(
    "pools",
    [
      ["Pool", (pool) => nameLink("pools", pool.namespace, pool.name)],
      ["State", (pool) => badge(poolState(pool), poolProblem(pool))],
      ["Warm", (pool) => h("span", { class: "with-level" }, level(pool.ready, pool.desired, poolState(pool)[1]), h("span", { class: "tabular" }, `${pool.ready} / ${pool.desired}`)), "level-cell"],
      [span(store.samples), (pool) => area(poolSeries(pool.key).map((each) => each.ready), { height: 22, label: `Warm sandboxes of ${pool.name} over time`, most: pool.desired }), "spark"],
      ["Claimed", (pool) => claimsOf(pool).length, "number"],
      ["Warm starts", (pool) => percent(launches(pool.key).rate), "number"],
      ["Template", (pool) => pool.template, "optional"],
    ],
    [...pools].sort((a, b) => a.key.localeCompare(b.key)),
    changed,
  );
}

/** @param {any} pool */
function claimsOf(pool) {
  return all("claims").filter((claim) => claim.pool === pool.name && claim.namespace === pool.namespace);
}

/** @param {string} key @param {URLSearchParams} _query */
export function poolPage(key, _query) {
  const why = whyCard("pool", key);
  return {
    title: key.slice(key.indexOf("/") + 1),
    close: why.close,
    draw: () => {
      const pool = store.rows.pools.get(key);
      if (!pool) return [header("Pool", null, null, "/pools"), empty("This pool does not exist", `No pool ${key} was found. It may have been deleted.`)];
      return [
        header(
          namespaced(pool.namespace, pool.name),
          [
            changeButton("Claim", () => openClaimForm(key), { symbol: "plus", kind: "primary" }),
            changeButton("Scale", () => openScaleForm(pool)),
            changeButton("Roll out", () => openRolloutForm(pool)),
          ],
          [badge(poolState(pool)), h("span", { class: "quiet" }, `pool of template ${pool.template}, ${age(pool.created)} old`)],
          "/pools",
        ),
        why.draw(`${pool.ready}/${pool.desired}/${poolProblem(pool)}/${pool.progress}`),
        rollout(pool),
        poolCharts(pool),
        members(pool),
        poolClaims(pool),
      ];
    },
  };
}

/** How far the pool has followed its template. @param {any} pool */
function rollout(pool) {
  const template = store.rows.templates.get(`${pool.namespace}/${pool.template}`);
  const outdated = pool.members - pool.updated;
  const done = Math.min(pool.updatedReady, pool.desired);
  return section(
    "Template and rollout",
    [
      h(
        "div",
        { class: "rollout" },
        level(done, pool.desired, pool.rolledOut ? "good" : "waiting"),
        h("p", { role: "status" }, pool.rolledOut ? "All sandboxes have the current template." : `${done} of ${pool.desired} sandboxes are ready with the current template${outdated > 0 ? `, ${outdated} ${outdated === 1 ? "has" : "have"} an older one` : ""}.`),
      ),
      outdated > 0 && pool.strategy === "OnReplenish" && notice("Sandboxes with the older template stay until they are claimed. Roll out gradually to replace them now."),
      facts([
        ["Image", template?.image && h("code", {}, template.image)],
        ["CPU", template && (template.cpu || "unlimited")],
        ["Memory", template && (template.memory || "unlimited")],
        ["Runtime", template?.runtime],
        ["Follows its template", (STRATEGIES.find(([name]) => name === pool.strategy) ?? ["", pool.strategy])[1]],
      ]),
    ],
    template?.undo && changeButton("Undo the last change", () => openUndoForm(pool, template)),
    "rollout",
  );
}

/** @param {any} pool */
function poolCharts(pool) {
  const series = poolSeries(pool.key);
  const { warm, cold, rate } = launches(pool.key);
  const starts = rates(store.samples, (sample) => (sample.pools[pool.key] ? sample.pools[pool.key][6] + sample.pools[pool.key][7] : undefined));
  const hits = series.map((each, index) => {
    const before = series[Math.max(0, index - 24)];
    const [nowWarm, nowCold] = [each.warm - before.warm, each.cold - before.cold];
    return nowWarm + nowCold ? nowWarm / (nowWarm + nowCold) : each.warm + each.cold ? each.warm / (each.warm + each.cold) : null;
  });
  return h(
    "div",
    { class: "figures four", key: "figures" },
    figure("Warm sandboxes", `${pool.ready} of ${pool.desired}`, { values: series.map((each) => each.ready), limits: series.map((each) => each.desired), label: "Warm sandboxes over time, with the wanted number" }, series),
    figure("Warm starts", percent(rate), { values: hits, label: `Share of warm starts over time: ${warm} warm, ${cold} cold`, most: 1, tone: "good", show: percent, none: "The line begins with the first claim." }, series),
    figure("Claims per second", perSecond(starts.at(-1)), { values: starts, label: "Claims per second over time", most: 1, show: perSecond }, series),
    figure("Ready, current template", `${Math.min(pool.updatedReady, pool.desired)} of ${pool.desired}`, { values: series.map((each) => each.updatedReady), limits: series.map((each) => each.desired), label: "Sandboxes that are ready with the current template over time, with the wanted number" }, series),
  );
}

/** @param {any} pool */
function members(pool) {
  const idle = all("sandboxes").filter((sandbox) => sandbox.pool === pool.name && sandbox.namespace === pool.namespace);
  if (!idle.length) return null;
  return section(
    "Idle sandboxes",
    table(
      "members",
      [
        ["Sandbox", (sandbox) => nameLink("sandboxes", sandbox.namespace, sandbox.name)],
        ["State", (sandbox) => badge(sandboxState(sandbox), sandbox.message)],
        ["Node", (sandbox) => sandbox.node || "–"],
        ["Age", (sandbox) => age(sandbox.created), "number"],
      ],
      idle.sort((a, b) => a.name.localeCompare(b.name)),
      changed,
    ),
    h("span", { class: "quiet" }, String(idle.length)),
    "members",
  );
}

/** @param {any} pool */
function poolClaims(pool) {
  const claims = claimsOf(pool);
  if (!claims.length) return null;
  return section(
    "Claims",
    table(
      "pool-claims",
      [
        ["Claim", (claim) => nameLink("claims", claim.namespace, claim.name)],
        ["State", (claim) => badge(claimState(claim), claim.message)],
        ["Sandbox", (claim) => nameLink("sandboxes", claim.namespace, claim.sandbox)],
        ["Age", (claim) => age(claim.created), "number"],
      ],
      claims.sort((a, b) => b.created.localeCompare(a.created)),
      changed,
    ),
    h("a", { href: `/claims?filter=${encodeURIComponent(pool.name)}` }, "Show in claims"),
    "claims",
  );
}

/** @param {any} pool */
function openScaleForm(pool) {
  const input = h("input", { name: "replicas", type: "number", min: "0", max: "100000", required: true, value: String(pool.desired), inputmode: "numeric" });
  dialog(`Scale ${pool.name}`, field("Warm sandboxes", input, "Claimed sandboxes do not count: the pool makes a new one for each that is claimed."), "Scale", async (values) => {
    await send("POST", path("pools", pool.key, "/scale"), { replicas: Number(values.replicas) });
    toast(`Pool ${pool.name} has ${counted(Number(values.replicas), "warm sandbox")} from now on`);
  });
}

/** @param {any} pool */
function openRolloutForm(pool) {
  const template = store.rows.templates.get(`${pool.namespace}/${pool.template}`);
  if (!template) {
    toast(`Template ${pool.template} does not exist`, "bad");
    return;
  }
  const how = select("strategy", STRATEGIES, pool.strategy);
  const howField = field("How this pool follows it", how, EFFECTS[pool.strategy]);
  how.addEventListener("change", () => fill(howField.querySelector("p"), EFFECTS[how.value]));
  dialog(
    `Roll out ${pool.template}`,
    [
      h("p", { class: "quiet" }, "The pool makes its next sandboxes from the changed template. Claimed sandboxes stay as they are."),
      sharedTemplate(pool),
      field("Image", h("input", { name: "image", required: true, value: template.image, spellcheck: "false" })),
      h("div", { class: "field-row" }, field("CPU limit", h("input", { name: "cpu", value: template.cpu, placeholder: "unlimited" })), field("Memory limit", h("input", { name: "memory", value: template.memory, placeholder: "unlimited" }))),
      howField,
    ],
    "Roll out",
    async (values) => {
      await send("POST", path("pools", pool.key, "/rollout"), values);
      toast(values.strategy === "OnReplenish" ? "The template is changed. Idle sandboxes follow as they are claimed" : "The rollout has begun");
    },
  );
}

/** The other pools that a change of a pool's template changes too. @param {any} pool */
function sharedTemplate(pool) {
  const others = all("pools").filter((each) => each.key !== pool.key && each.namespace === pool.namespace && each.template === pool.template);
  if (!others.length) return null;
  const names = others.map((each) => each.name).sort();
  const which = names.length === 1 ? `Pool ${names[0]} has` : `Pools ${names.slice(0, -1).join(", ")} and ${names.at(-1)} have`;
  return notice(`${which} the same template, so this changes ${names.length === 1 ? "it" : "them"} too. ${names.length === 1 ? "It follows" : "They follow"} by ${names.length === 1 ? "its" : "their"} own strategy.`);
}

/** @param {any} pool @param {any} template */
function openUndoForm(pool, template) {
  dialog(
    `Undo the last change of ${pool.template}`,
    [
      h("p", {}, "The template becomes what it was before, with the image ", h("code", {}, template.undo), ". A second undo takes this one back."),
      sharedTemplate(pool),
      h("p", { class: "quiet" }, `The undo does not change how the pool follows its template. ${EFFECTS[pool.strategy] ?? ""}`),
    ],
    "Undo",
    async () => {
      await send("POST", path("pools", pool.key, "/undo"));
      toast("The template is what it was before");
    },
  );
}
