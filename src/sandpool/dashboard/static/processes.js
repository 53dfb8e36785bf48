// What runs in a sandbox: its processes, and the ports that they listen on, with a link to each.

// @ts-check

import { path, read, send, settings } from "./api.js";
import { fill, h } from "./dom.js";
import { size } from "./format.js";
import { button, changeButton, empty, failed, section, table } from "./ui.js";

const INTERVAL_MS = 5000;
/** Ports of Sandpool's own server in a sandbox. @type {Record<number, string>} */
const SANDBOXD = { 8879: "sandboxd: variables of claims", 8888: "sandboxd: commands and files" };

/** @param {any} sandbox */
export function activity(sandbox) {
  const element = h("div", { class: "parts", keep: "activity" });
  let closed = false;
  /** @type {any} */
  let timer;
  /** @type {any} */
  let data;
  /** Opened ports with their URLs. @type {Map<number, any>} */
  const opened = new Map();

  async function refresh() {
    clearTimeout(timer);
    if (!document.hidden) {
      try {
        data = await read(path("sandboxes", sandbox.key, "/activity"));
        draw();
      } catch (error) {
        if (!closed) fill(element, section("Processes", failed(error), button("Try again", refresh)));
        return;
      }
    }
    if (!closed) timer = setTimeout(refresh, INTERVAL_MS);
  }

  function draw() {
    fill(
      element,
      section("Open ports", data.ports.length ? h("ul", { class: "ports" }, [...data.ports].sort((a, b) => Number(a in SANDBOXD) - Number(b in SANDBOXD) || a - b).map(portItem)) : empty("No open ports", "Start a server in the sandbox, and its port appears here."), null, "ports"),
      section(
        "Processes",
        data.processes.length ? processTable(data.processes) : empty("No processes", "Nothing runs in the sandbox's main container."),
        h("span", { class: "quiet" }, String(data.processes.length)),
        "processes",
      ),
    );
  }

  /** @param {number} port */
  function portItem(port) {
    const url = opened.get(port);
    return h(
      "li",
      { key: port },
      h("code", {}, String(port)),
      SANDBOXD[port] && h("span", { class: "quiet" }, SANDBOXD[port]),
      url instanceof Error
        ? h("span", { class: "quiet" }, url.message)
        : url
          ? h("a", { href: url, target: "_blank", rel: "noopener noreferrer" }, url)
          : changeButton(settings.loopback ? "Open" : "How to open it", () => openPort(port), { symbol: "external" }),
    );
  }

  /** @param {number} port */
  async function openPort(port) {
    try {
      const { url } = await send("POST", path("sandboxes", sandbox.key, `/ports/${port}`));
      opened.set(port, url);
      window.open(url, "_blank", "noopener,noreferrer");
    } catch (error) {
      const failure = /** @type {any} */ (error);
      opened.set(port, new Error([failure.message, failure.advice].filter(Boolean).join(". ")));
    }
    draw();
  }

  if (sandbox.ready) {
    fill(element, section("Processes", h("p", { class: "quiet loading" }, "Loading …"), null, "processes"));
    refresh();
  }
  return {
    element,
    close() {
      closed = true;
      clearTimeout(timer);
    },
  };
}

/** @param {any[]} processes */
function processTable(processes) {
  return table(
    "processes",
    [
      ["PID", (each) => String(each.pid), "number"],
      ["Command", (each) => h("code", { class: "command-line" }, each.command.slice(0, 200)), "wide"],
      ["CPU time", (each) => `${each.cpu_seconds.toFixed(1)} s`, "number"],
      ["Memory", (each) => size(each.memory), "number"],
      ["Threads", (each) => String(each.threads), "number"],
    ],
    processes.map((each) => ({ ...each, key: each.pid })),
    () => {},
  );
}
