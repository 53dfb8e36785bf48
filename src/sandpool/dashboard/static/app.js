// The frame of all pages: navigation, the page that the address names, and redrawing when something changes.

// @ts-check

import { send, settings } from "./api.js";
import { claimPage, claimsPage, openClaimForm } from "./claims.js";
import { controllersPage } from "./controllers.js";
import { fill, h, icon } from "./dom.js";
import { nodesPage } from "./nodes.js";
import { overviewPage } from "./overview.js";
import { poolPage, poolsPage } from "./pools.js";
import { sandboxPage, sandboxesPage } from "./sandboxes.js";
import { changed, follow, store, subscribe } from "./store.js";
import { button, empty, notice } from "./ui.js";

/** @type {[string, string, string][]} */
const NAVIGATION = [
  ["/", "Overview", "overview"],
  ["/pools", "Pools", "pools"],
  ["/claims", "Claims", "claims"],
  ["/sandboxes", "Sandboxes", "sandboxes"],
  ["/nodes", "Nodes", "nodes"],
  ["/controllers", "Controllers", "controllers"],
];

/** A page: `draw` returns its content, `close` ends what it has started. @typedef {{title: string, draw: () => any, close?: () => void}} Page */

/** @type {Record<string, (key: string, query: URLSearchParams) => Page>} */
const PAGES = {
  pools: (key, query) => (key ? poolPage(key, query) : poolsPage()),
  claims: (key, query) => (key ? claimPage(key, query) : claimsPage(query)),
  sandboxes: (key, query) => (key ? sandboxPage(key, query) : sandboxesPage(query)),
  nodes: () => nodesPage(),
  controllers: () => controllersPage(),
};

const main = h("main", { id: "main", tabindex: "-1" });
const side = h("aside", { class: "side" });
/** @type {Page} */
let page;
let address = "";
/** The address whose tab was scrolled to. */
let tabbed = "";

function redraw() {
  fill(side, navigation());
  const trouble = connectionNotice();
  fill(main, trouble && h("div", { key: "trouble" }, trouble), store.loaded ? h("div", { key: address, class: "page" }, page.draw()) : skeleton());
  document.title = `${page.title} · Sandpool`;
  showTab();
}

/** Scroll the tabs of a page to the current one, once for each address. */
function showTab() {
  const tabs = main.querySelector(".tabs");
  const current = tabs?.querySelector("[aria-current]");
  if (!current || tabbed === address) return;
  tabbed = address;
  tabs.scrollLeft = current.offsetLeft - tabs.offsetLeft - (tabs.clientWidth - current.offsetWidth) / 2;
}

function connectionNotice() {
  if (store.loaded && !store.connected) return notice("The connection to the dashboard is lost. It is tried again; what you see is from before.", "bad");
  if (store.stale) return notice("The API has sent nothing for minutes. What you see may be old.");
  return unseenNotice();
}

/** Which kinds cannot be read, and why. The page of the nodes tells about them. */
function unseenNotice() {
  const kinds = Object.keys(store.unseen).filter((kind) => kind !== "nodes");
  if (!kinds.length) return null;
  const isOfCluster = settings.namespace === null && settings.title !== "local home";
  return notice([
    h("p", {}, `These cannot be read: ${kinds.join(", ")}.`),
    h("p", { class: "quiet" }, store.unseen[kinds[0]]),
    isOfCluster && h("p", { class: "quiet" }, "With rights in one namespace use: sandpool dashboard --namespace NAME"),
  ]);
}

function skeleton() {
  return h("div", { class: "skeleton", "aria-busy": "true", key: "skeleton" }, h("div", { class: "bone title" }), h("div", { class: "bone" }), h("div", { class: "bone" }));
}

function navigation() {
  const here = location.pathname;
  const isCurrent = (/** @type {string} */ href) => (href === "/" ? here === "/" : here === href || here.startsWith(`${href}/`));
  return [
    h("a", { href: "/", class: "brand" }, h("span", { class: "mark", "aria-hidden": "true" }), h("span", {}, "Sandpool")),
    h("p", { class: "where", title: settings.title }, settings.title, settings.readOnly && h("span", { class: "tag" }, "read-only")),
    h(
      "nav",
      { class: "navigation", "aria-label": "Pages" },
      NAVIGATION.map(([href, title, symbol]) =>
        h("a", { href, "aria-current": isCurrent(href) ? "page" : undefined }, icon(symbol), h("span", {}, title)),
      ),
    ),
    h(
      "div",
      { class: "side-footer" },
      h("span", { class: `live ${store.connected ? "on" : ""}` }, store.connected ? "Live" : "Not connected"),
      button("", toggleTheme, { symbol: "sun", kind: "plain", label: "Switch between light and dark" }),
      button("", leave, { symbol: "leave", kind: "plain", label: "Log out" }),
    ),
  ];
}

async function leave() {
  await send("POST", "/api/logout");
  location.assign("/login");
}

function toggleTheme() {
  const dark = document.documentElement.dataset.theme
    ? document.documentElement.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "light" : "dark";
  localStorage.setItem("theme", dark ? "light" : "dark");
}

/** Show the page that the address names. */
function route() {
  page?.close?.();
  const [, kind, ...rest] = location.pathname.split("/");
  address = location.pathname;
  const key = rest.map(decodeURIComponent).join("/");
  const query = new URLSearchParams(location.search);
  if (!kind) page = overviewPage();
  else if (PAGES[kind]) page = PAGES[kind](key, query);
  else page = { title: "Not found", draw: () => empty("There is no such page", h("a", { href: "/" }, "Go to the overview")) };
  address += `?${query}`;
  redraw();
}

/** Go to a page without loading it. @param {string} href */
export function go(href) {
  history.pushState(null, "", href);
  route();
  scrollTo(0, 0);
}

document.addEventListener("click", (event) => {
  const target = /** @type {Element} */ (event.target).closest?.("a");
  if (!target || event.defaultPrevented || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
  const url = new URL(target.href);
  if (url.origin !== location.origin || target.hasAttribute("download") || target.target) return;
  event.preventDefault();
  go(url.pathname + url.search);
  // Links that stay keep the focus; after a change of page, readers begin with its content.
  if (!document.body.contains(target) || target.closest("main")) main.focus({ preventScroll: true });
});

document.addEventListener("keydown", (event) => {
  const typing = /** @type {Element} */ (event.target).closest?.("input, textarea, select, dialog, .terminal");
  if (typing || event.metaKey || event.ctrlKey || event.altKey) return;
  const number = Number(event.key);
  if (number >= 1 && number <= NAVIGATION.length) go(NAVIGATION[number - 1][0]);
  else if (event.key === "/") {
    const search = /** @type {HTMLInputElement | null} */ (document.querySelector("main input[type=search]"));
    if (search) {
      event.preventDefault();
      search.focus();
    }
  } else if (event.key === "c" && !settings.readOnly) {
    event.preventDefault();
    openClaimForm();
  }
});

window.addEventListener("popstate", route);
window.addEventListener("sandpool:go", (event) => go(/** @type {CustomEvent} */ (event).detail));
document.documentElement.dataset.theme = localStorage.getItem("theme") ?? "";
document.body.append(h("a", { href: "#main", class: "skip", onclick: (/** @type {Event} */ event) => { event.preventDefault(); main.focus(); } }, "Skip to content"), side, main);
subscribe(redraw);
route();
// Ages count on without any event.
setInterval(changed, 1000);
follow();
