// Claims: which sandbox each has, how long that took and why; and the form that makes one.

// @ts-check

import { path, read, send, settings } from "./api.js";
import { h } from "./dom.js";
import { age, milliseconds } from "./format.js";
import { all, changed, claimState, sandboxOf, store } from "./store.js";
import { badge, button, changeButton, dialog, empty, facts, field, header, loaded, nameLink, namespaced, notice, pageOf, section, select, table, timeToReady, toast } from "./ui.js";
import { waterfall } from "./waterfall.js";
import { whyCard } from "./why.js";

/** The pool of the home, which the commands claim from as well unless they name another. */
const DEFAULT_POOL = "python";
/** Times that an empty trace is asked for again, and the ms between them. */
const TRACE_ATTEMPTS = 10;
const TRACE_PAUSE = 2000;

/** @param {URLSearchParams} query */
export function claimsPage(query) {
  let filter = query.get("filter") ?? "";
  const search = h("input", {
    type: "search",
    class: "search",
    placeholder: "Filter by name, pool or state",
    "aria-label": "Filter claims by name, pool or state",
    value: filter,
    keep: "search",
    oninput: (/** @type {any} */ event) => {
      filter = event.target.value;
      changed();
    },
  });
  return {
    title: "Claims",
    draw: () => {
      const claims = all("claims");
      const wanted = filter.trim().toLowerCase();
      const shown = claims.filter((claim) => `${claim.key} ${claim.pool} ${claimState(claim).join(" ")}`.toLowerCase().includes(wanted));
      // Claims that wait are why a person looks.
      shown.sort((a, b) => Number(a.ready) - Number(b.ready) || b.created.localeCompare(a.created));
      return [
        header("Claims", changeButton("Claim a sandbox", () => openClaimForm(), { kind: "primary", symbol: "plus" }), "Each has one sandbox, and no sandbox has two."),
        claims.length
          ? section("All claims", [h("div", { class: "toolbar" }, search), shown.length ? claimTable(shown) : empty("Nothing matches", `No claim has "${filter}" in its name, pool or state.`)], h("span", { class: "quiet" }, claims.length.toLocaleString("en")), "list")
          : section("All claims", empty("No claims", "A claim gets one sandbox of a pool, and gives it back when it is released."), null, "list"),
      ];
    },
  };
}

/** @param {any[]} claims */
function claimTable(claims) {
  return table(
    "claims",
    [
      ["Claim", (claim) => nameLink("claims", claim.namespace, claim.name)],
      ["State", (claim) => badge(claimState(claim), claim.message)],
      ["Start", (claim) => sandboxOf(claim)?.launch || "–"],
      ["Time to ready", timeToReady, "number"],
      ["Pool", (claim) => nameLink("pools", claim.namespace, claim.pool)],
      ["Sandbox", (claim) => nameLink("sandboxes", claim.namespace, claim.sandbox), "optional"],
      ["Age", (claim) => age(claim.created), "number"],
    ],
    claims,
    changed,
  );
}

/** @param {string} key @param {URLSearchParams} _query */
export function claimPage(key, _query) {
  const why = whyCard("claim", key);
  /** @type {{data?: any, error?: any}} */
  let trace = {};
  let tracedFor = "";
  let closed = false;
  /** How often an empty trace was asked for again. */
  let asked = 0;
  async function ask() {
    try {
      trace = { data: await read(path("trace", key)) };
    } catch (error) {
      trace = { error };
    }
    // The log is written after the calls, so it may lack those about a claim that was just made.
    if (!closed && trace.data?.available && !trace.data.steps.length && asked < TRACE_ATTEMPTS) {
      asked += 1;
      setTimeout(ask, TRACE_PAUSE);
    }
    changed();
  }
  return {
    title: key.slice(key.indexOf("/") + 1),
    close: () => {
      closed = true;
      why.close();
    },
    draw: () => {
      const claim = store.rows.claims.get(key);
      if (!claim) return [header("Claim", null, null, "/claims"), empty("This claim does not exist", `No claim ${key} was found. It may have been released, or have expired.`, h("a", { href: "/claims" }, "All claims"))];
      const sandbox = sandboxOf(claim);
      const state = `${claim.ready}/${claim.reason}/${claim.sandbox}/${claim.latency}`;
      if (tracedFor !== state) {
        tracedFor = state;
        setTimeout(ask, 300);
      }
      return [
        header(
          namespaced(claim.namespace, claim.name),
          [
            claim.sandbox && h("a", { class: "button primary", href: `${pageOf("sandboxes", `${claim.namespace}/${claim.sandbox}`)}?tab=terminal` }, "Open a terminal"),
            changeButton("Release", () => openReleaseForm(claim), { kind: "danger" }),
          ],
          [badge(claimState(claim)), h("span", { class: "quiet" }, `claim, ${age(claim.created)} old`)],
          "/claims",
        ),
        why.draw(state),
        section(
          "Facts",
          facts([
            ["Sandbox", claim.sandbox && nameLink("sandboxes", claim.namespace, claim.sandbox)],
            ["Pool", nameLink("pools", claim.namespace, claim.pool)],
            ["Start", sandbox?.launch && (sandbox.launch === "warm" ? "warm, from its pool" : "cold, made for this claim")],
            ["Time to ready", claim.latency === null ? `– ${claim.unmeasured}` : timeToReady(claim)],
            ["Node", sandbox?.node],
            ["Created", new Date(claim.created).toLocaleString()],
            ["Ends", claim.expires && new Date(claim.expires).toLocaleString()],
          ]),
          null,
          "facts",
        ),
        section("Waterfall", loaded(trace, (data) => (data.available ? waterfall(data, claim.name) : noTrace(claim))), trace.data?.available && button("Refresh", ask), "waterfall"),
      ];
    },
  };
}

/** @param {any} claim */
function noTrace(claim) {
  return [
    notice([h("p", {}, "Every API call about this claim is shown here once there is an audit log."), h("p", { class: "quiet" }, settings.title === "local home" ? "Start the home with: sandpool up --audit-log FILE" : "Serve the dashboard with: sandpool dashboard --audit-log FILE")]),
    claim.latency !== null && h("p", { class: "quiet" }, `From its first observation by the controller until the controller recorded that it is Ready it took ${milliseconds(claim.latency)}.`),
  ];
}

/** @param {any} claim */
export function openReleaseForm(claim) {
  dialog(
    `Release ${claim.name}?`,
    h("p", {}, "Its sandbox is deleted, with all processes and files in it. This cannot be undone."),
    "Release",
    async () => {
      await send("DELETE", path("claims", claim.key), { uid: claim.uid });
      toast(`Released ${claim.name}`);
      if (location.pathname === pageOf("claims", claim.key)) go("/claims");
    },
    { kind: "danger", busy: "Releasing …" },
  );
}

/** The form to claim a sandbox. @param {string} [poolKey] */
export function openClaimForm(poolKey) {
  const pools = all("pools").sort((a, b) => b.ready - a.ready);
  if (!pools.length) {
    toast("There is no pool to claim from", "bad");
    return;
  }
  /** @type {[string, string][]} */
  const options = pools.map((pool) => [pool.key, `${pool.namespace === "default" ? pool.name : pool.key} (${pool.ready} warm)`]);
  dialog(
    "Claim a sandbox",
    [
      field("Pool", select("pool", options, poolKey ?? (pools.find((pool) => pool.name === DEFAULT_POOL) ?? pools[0]).key)),
      field("Name", h("input", { name: "name", placeholder: "random", pattern: "[a-z0-9]([a-z0-9\\-]*[a-z0-9])?", maxlength: "63", autocomplete: "off", title: "Lower-case letters, digits and hyphens" }), "Lower-case letters, digits and hyphens. Left empty, it gets a random one."),
      field("Release it after", select("minutes", [["60", "1 hour"], ["480", "8 hours"], ["1440", "1 day"], ["0", "Never: I release it"]])),
    ],
    "Claim",
    async (values) => {
      const [namespace, pool] = values.pool.split("/");
      const made = await send("POST", "/api/claims", { namespace, pool, name: values.name, minutes: Number(values.minutes) });
      toast(`Claimed ${made.name}`);
      go(pageOf("sandboxes", `${made.namespace}/${made.sandbox}`) + "?tab=run");
    },
    { busy: "Claiming …" },
  );
}

/** @param {string} href */
function go(href) {
  window.dispatchEvent(new CustomEvent("sandpool:go", { detail: href }));
}
