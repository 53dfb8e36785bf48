// Sandboxes: what each uses, and the page of one: overview, code, terminal, files, logs.

// @ts-check

import { path, send, settings } from "./api.js";
import { openReleaseForm } from "./claims.js";
import { figure } from "./chart.js";
import { h } from "./dom.js";
import { files } from "./files.js";
import { age, cpu, size } from "./format.js";
import { logView } from "./logs.js";
import { activity } from "./processes.js";
import { runView } from "./run.js";
import { all, changed, claimOf, sandboxState, store } from "./store.js";
import { terminal } from "./terminal.js";
import { attempt, badge, changeButton, empty, facts, header, nameLink, namespaced, notice, pageOf, section, table, tabs } from "./ui.js";
import { whyCard } from "./why.js";

/** Samples of usage that the page of a sandbox draws. */
const USAGE_SAMPLES = 100;

/** @param {URLSearchParams} query */
export function sandboxesPage(query) {
  let filter = query.get("filter") ?? "";
  const search = h("input", {
    type: "search",
    class: "search",
    placeholder: "Filter by name, claim, pool or node",
    "aria-label": "Filter sandboxes by name, claim, pool or node",
    value: filter,
    keep: "search",
    oninput: (/** @type {any} */ event) => {
      filter = event.target.value;
      changed();
    },
  });
  return {
    title: "Sandboxes",
    draw: () => {
      const sandboxes = all("sandboxes");
      const wanted = filter.trim().toLowerCase();
      const shown = sandboxes.filter((each) => `${each.key} ${each.claim} ${each.pool} ${each.node} ${sandboxState(each).join(" ")}`.toLowerCase().includes(wanted));
      const load = (/** @type {any} */ each) => store.usage.sandboxes[each.key]?.[0] ?? 0;
      shown.sort((a, b) => Number(Boolean(b.claim)) - Number(Boolean(a.claim)) || Math.round(load(b) * 20) - Math.round(load(a) * 20) || a.key.localeCompare(b.key));
      return [
        header("Sandboxes", null, "Claimed ones first, the busiest at the top."),
        store.usage.problems.map((problem) => notice(`CPU and memory are incomplete: ${problem}`)),
        sandboxes.length
          ? section("All sandboxes", [h("div", { class: "toolbar" }, search), shown.length ? sandboxTable(shown) : empty("Nothing matches", `No sandbox has "${filter}" in its name, claim, pool or node.`)], h("span", { class: "quiet" }, sandboxes.length.toLocaleString("en")), "list")
          : section("All sandboxes", empty("No sandboxes", "Pools make them; the first appear when there is a pool."), null, "list"),
      ];
    },
  };
}

/** @param {any[]} sandboxes */
function sandboxTable(sandboxes) {
  return table(
    "sandboxes",
    [
      ["Sandbox", (each) => nameLink("sandboxes", each.namespace, each.name)],
      ["State", (each) => badge(sandboxState(each), each.message)],
      ["Held by", (each) => (each.claim ? nameLink("claims", each.namespace, each.claim) : each.pool ? h("span", { class: "quiet" }, "pool ", nameLink("pools", each.namespace, each.pool)) : "–")],
      ["CPU", (each) => cpu(store.usage.sandboxes[each.key]?.[0]), "number"],
      ["Memory", (each) => size(store.usage.sandboxes[each.key]?.[1]), "number"],
      ["Node", (each) => each.node || "–", "optional"],
      ["Age", (each) => age(each.created), "number"],
    ],
    sandboxes,
    changed,
  );
}

/** @type {[string, string][]} */
const TABS = [
  ["", "Overview"],
  ["run", "Run code"],
  ["terminal", "Terminal"],
  ["files", "Files"],
  ["logs", "Logs"],
];

/** @param {string} key @param {URLSearchParams} query */
export function sandboxPage(key, query) {
  const tab = query.get("tab") ?? "";
  const base = pageOf("sandboxes", key);
  const why = whyCard("sandbox", key);
  /** @type {{at: number, cpu: number | null, memory: number}[]} */
  const used = [];
  /** @type {any} */
  let lastUsage = null;
  /** A part of the page that lives as long as its tab is open. @type {{element: any, close: () => void} | null} */
  let part = null;

  function overview(/** @type {any} */ sandbox) {
    if (store.usage !== lastUsage) {
      lastUsage = store.usage;
      const now = store.usage.sandboxes[key];
      if (now) used.push({ at: Date.now() / 1000, cpu: now[0], memory: now[1] });
      if (used.length > USAGE_SAMPLES) used.shift();
    }
    const now = used.at(-1);
    part ??= activity(sandbox);
    return [
      why.draw(`${sandbox.ready}/${sandbox.reason}/${sandbox.suspended}/${sandbox.claim}`),
      h(
        "div",
        { class: "figures two", key: "figures" },
        figure("CPU", now ? cpu(now.cpu) : "–", { values: used.map((each) => each.cpu), label: "CPUs in use over time", most: 0.2, show: cpu }, used),
        figure("Memory", now ? size(now.memory) : "–", { values: used.map((each) => each.memory), label: "Memory in use over time", most: 32 << 20, show: size }, used),
      ),
      section(
        "Facts",
        facts([
          ["Claim", sandbox.claim && nameLink("claims", sandbox.namespace, sandbox.claim)],
          ["Pool", (sandbox.pool || claimOf(sandbox)?.pool) && nameLink("pools", sandbox.namespace, sandbox.pool || claimOf(sandbox)?.pool)],
          ["Template", sandbox.template],
          ["Node", sandbox.node],
          ["Pod", sandbox.pod !== sandbox.name && sandbox.pod],
          ["Start", sandbox.launch],
          ["Created", new Date(sandbox.created).toLocaleString()],
        ]),
        null,
        "facts",
      ),
      part.element,
    ];
  }

  function content(/** @type {any} */ sandbox) {
    if (tab === "") return overview(sandbox);
    if (settings.readOnly && (tab === "run" || tab === "terminal")) return notice("This dashboard is read-only, so it runs nothing.");
    if (!sandbox.ready && part === null) return notice(sandbox.suspended ? "The sandbox is suspended. Resume it first." : `The sandbox does not run: ${sandbox.message || "it is being started"}`);
    if (tab === "run") part ??= runView(key);
    else if (tab === "terminal") part ??= terminal(key);
    else if (tab === "files") part ??= files(key);
    else if (tab === "logs") part ??= logView(key);
    return part?.element ?? null;
  }

  return {
    title: key.slice(key.indexOf("/") + 1),
    close: () => {
      why.close();
      part?.close();
    },
    draw: () => {
      const sandbox = store.rows.sandboxes.get(key);
      if (!sandbox) return [header("Sandbox", null, null, "/sandboxes"), empty("This sandbox does not exist", `No sandbox ${key} was found. It is gone if its claim was released.`, h("a", { href: "/sandboxes" }, "All sandboxes"))];
      const claim = claimOf(sandbox);
      return [
        header(
          namespaced(sandbox.namespace, sandbox.name),
          [
            sandbox.claim &&
              changeButton(sandbox.suspended ? "Resume" : "Suspend", () =>
                attempt(() => send("POST", path("sandboxes", key, "/mode"), { suspended: !sandbox.suspended }), sandbox.suspended ? "Resuming" : "Suspending: processes end, volumes stay"),
              ),
            claim && changeButton("Release", () => openReleaseForm(claim), { kind: "danger" }),
          ],
          [badge(sandboxState(sandbox)), h("span", { class: "quiet" }, sandbox.claim ? ["held by claim ", nameLink("claims", sandbox.namespace, sandbox.claim)] : sandbox.pool ? ["idle in pool ", nameLink("pools", sandbox.namespace, sandbox.pool)] : "sandbox of its own")],
          "/sandboxes",
        ),
        tabs(base, TABS, tab),
        h("div", { key: `tab:${tab}`, class: "tab" }, content(sandbox)),
      ];
    },
  };
}
