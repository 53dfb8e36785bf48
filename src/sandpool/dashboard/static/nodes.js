// Nodes: whether they are ready, and what their sandboxes use.

// @ts-check

import { h } from "./dom.js";
import { age, cpu, size } from "./format.js";
import { all, changed, nodeState, store } from "./store.js";
import { badge, empty, header, level, notice, section, table } from "./ui.js";

export function nodesPage() {
  return {
    title: "Nodes",
    draw: () => {
      const nodes = all("nodes").sort((a, b) => a.name.localeCompare(b.name));
      const sandboxes = all("sandboxes");
      return [
        header("Nodes", null, "The machines that run sandboxes."),
        store.usage.problems.map((problem) => notice(`CPU and memory are incomplete: ${problem}`)),
        nodes.length
          ? section("All nodes", nodeTable(nodes, sandboxes), null, "list")
          : section("All nodes", empty("No nodes", "nodes" in store.unseen ? "They cannot be read: this needs permission to list nodes." : "There is no node yet, so no sandbox can run."), null, "list"),
      ];
    },
  };
}

/** @param {any[]} nodes @param {any[]} sandboxes */
function nodeTable(nodes, sandboxes) {
  const used = (/** @type {any} */ node) => {
    let cores = 0;
    let memory = 0;
    let count = 0;
    for (const sandbox of sandboxes) {
      if (sandbox.node !== node.name) continue;
      count += 1;
      const [c, m] = store.usage.sandboxes[sandbox.key] ?? [0, 0];
      cores += c ?? 0;
      memory += m;
    }
    return { cores, memory, count };
  };
  return table(
    "nodes",
    [
      ["Node", (node) => h("span", { class: "name" }, node.name)],
      ["State", (node) => badge(nodeState(node), node.message)],
      ["Sandboxes", (node) => measure(used(node).count, node.pods, String(used(node).count), String(node.pods))],
      ["CPU", (node) => (node.simulated ? "simulated" : measure(used(node).cores, node.cpu, cpu(used(node).cores), String(node.cpu)))],
      ["Memory", (node) => (node.simulated ? "simulated" : measure(used(node).memory, node.memory, size(used(node).memory), size(node.memory)))],
      ["Runtimes", (node) => node.runtimes || "–", "optional"],
      ["Age", (node) => age(node.created), "number"],
    ],
    nodes,
    changed,
  );
}

/** @param {number} part @param {number} whole @param {string} shown @param {string} most */
function measure(part, whole, shown, most) {
  return h("span", { class: "with-level" }, level(part, whole, part > 0.9 * whole ? "bad" : "accent"), h("span", { class: "tabular" }, `${shown} / ${most}`));
}
