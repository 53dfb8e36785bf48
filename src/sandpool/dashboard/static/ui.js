// The parts that pages are made of.

// @ts-check

import { Failure, settings } from "./api.js";
import { h, fill, icon } from "./dom.js";
import { milliseconds } from "./format.js";

/** A state with its tone, which is never told by colour alone, and the reason of the API as its title. @param {[string, string, string?]} state @param {string} [hint] */
export function badge([text, tone, reason], hint) {
  return h("span", { class: `badge ${tone}`, title: [reason, hint].filter(Boolean).join(": ") || undefined }, h("span", { class: "dot", "aria-hidden": "true" }), text);
}

/** @param {string} href @param {any} content @param {string} [className] */
export function link(href, content, className) {
  return h("a", { href, class: className }, content);
}

/** The page of an object. @param {string} kind @param {string} key */
export function pageOf(kind, key) {
  return `/${kind}/${key.split("/").map(encodeURIComponent).join("/")}`;
}

/** An object by its name, with its namespace if there are several. @param {string} kind @param {string} namespace @param {string} name */
export function nameLink(kind, namespace, name) {
  if (!name) return h("span", { class: "quiet" }, "–");
  return link(pageOf(kind, `${namespace}/${name}`), namespaced(namespace, name), "name");
}

/** @param {string} namespace @param {string} name */
export function namespaced(namespace, name) {
  if (!namespace || namespace === "default" || namespace === settings.namespace) return name;
  return [h("span", { class: "namespace" }, `${namespace}/`), name];
}

/** @param {string | any[]} title @param {any} [actions] @param {any} [lead] @param {string} [back] */
export function header(title, actions, lead, back) {
  return h(
    "header",
    { class: "page-header", key: "page-header" },
    h(
      "div",
      {},
      back && link(back, [icon("back"), "Back"], "back"),
      h("h1", {}, title),
      lead && h("div", { class: "lead" }, lead),
    ),
    actions && h("div", { class: "actions" }, actions),
  );
}

/** @param {any} title @param {any} content @param {any} [actions] @param {string} [key] */
export function section(title, content, actions, key) {
  return h(
    "section",
    { class: "card", key: key ?? (typeof title === "string" ? title : undefined) },
    h("div", { class: "card-header" }, h("h2", {}, title), actions && h("div", { class: "actions" }, actions)),
    content,
  );
}

/** What to do where there is nothing to see. @param {string} title @param {any} text @param {any} [action] */
export function empty(title, text, action) {
  return h("div", { class: "empty" }, h("p", { class: "empty-title" }, title), h("p", { class: "quiet" }, text), action);
}

/** @param {string} text @param {(event: any) => void} act @param {{kind?: string, symbol?: string, disabled?: any, label?: string}} [options] */
export function button(text, act, { kind = "", symbol, disabled, label } = {}) {
  return h(
    "button",
    { type: "button", class: `button ${kind}`, disabled: Boolean(disabled), "aria-label": label, title: label, onclick: act },
    symbol && icon(symbol),
    text && h("span", {}, text),
  );
}

/** A button for something that a read-only dashboard refuses. @param {string} text @param {(event: any) => void} act @param {any} [options] */
export function changeButton(text, act, options = {}) {
  if (settings.readOnly) return h("span", { title: "This dashboard is read-only." }, button(text, () => {}, { ...options, disabled: true }));
  return button(text, act, options);
}

const STEP = 100;
/** How many rows of each table are shown. @type {Map<string, number>} */
const shownRows = new Map();

/**
 * A table that is a list of cards on narrow screens. Columns: title, cell, and a class.
 * @param {string} name @param {[string, (row: any) => any, string?][]} columns @param {any[]} rows @param {() => void} redraw
 */
export function table(name, columns, rows, redraw) {
  const limit = shownRows.get(name) ?? STEP;
  const shown = rows.slice(0, limit);
  return [
    h(
      "div",
      { class: "table-frame" },
      h(
        "table",
        { class: "rows" },
        h("thead", {}, h("tr", {}, columns.map(([title, , kind]) => h("th", { scope: "col", class: kind }, title)))),
        h(
          "tbody",
          {},
          shown.map((row) =>
            h(
              "tr",
              { key: row.key },
              columns.map(([title, cell, kind]) => h("td", { class: kind, "data-title": title }, cell(row))),
            ),
          ),
        ),
      ),
    ),
    rows.length > limit &&
      h(
        "p",
        { class: "more" },
        `${shown.length} of ${rows.length.toLocaleString("en")} `,
        button(`Show ${Math.min(5 * STEP, rows.length - limit)} more`, () => {
          shownRows.set(name, limit + 5 * STEP);
          redraw();
        }),
      ),
  ];
}

/** A short level bar: a part of a whole. @param {number} part @param {number} whole @param {string} tone */
export function level(part, whole, tone = "accent") {
  const share = whole ? Math.min(1, part / whole) : part ? 1 : 0;
  return h(
    "span",
    { class: `level ${tone}`, role: "img", "aria-label": `${part} of ${whole}` },
    h("span", { class: "level-bar", vars: { share } }),
  );
}

/** @param {string} title @param {any} value @param {any} [note] @param {any} [detail] */
export function tile(title, value, note, detail) {
  return h("div", { class: "tile" }, h("span", { class: "tile-title" }, title), h("strong", {}, value), note && h("span", { class: "quiet small" }, note), detail);
}

export const TIME_TO_READY = "From the controller's first look at the claim until the controller recorded that it is Ready. On the embedded API, the write of that status is not included.";

/** The time until a claim was Ready; a dash with the reason if it is unknown. @param {any} claim */
export function timeToReady(claim) {
  return h("span", { title: claim.latency === null ? claim.unmeasured : TIME_TO_READY }, milliseconds(claim.latency));
}

/** Names and values. @param {[string, any][]} pairs */
export function facts(pairs) {
  return h(
    "dl",
    { class: "facts" },
    pairs.filter(([, value]) => value !== "" && value !== null && value !== undefined && value !== false).map(([name, value]) => h("div", { key: name }, h("dt", {}, name), h("dd", {}, value))),
  );
}

/** @param {any} content @param {string} [tone] */
export function notice(content, tone = "waiting") {
  return h("div", { class: `notice ${tone}`, role: tone === "bad" ? "alert" : "status" }, icon(tone === "good" ? "check" : "warning"), h("div", {}, content));
}

/** An error with its advice. @param {unknown} error */
export function failed(error) {
  const failure = /** @type {Failure} */ (error);
  return notice([h("p", {}, failure.message), failure.advice && h("p", { class: "quiet" }, failure.advice)], "bad");
}

const toasts = h("div", { class: "toasts", role: "status", "aria-live": "polite" });
document.body.append(toasts);

/** Say what has happened, for a few seconds. @param {any} text @param {string} [tone] */
export function toast(text, tone = "good") {
  const shown = h("div", { class: `toast ${tone}` }, icon(tone === "bad" ? "warning" : "check"), h("div", {}, text));
  toasts.append(shown);
  setTimeout(() => shown.remove(), tone === "bad" ? 9000 : 4000);
}

/** Do something that may fail, and say so. @param {() => Promise<any>} work @param {any} [done] */
export async function attempt(work, done) {
  try {
    await work();
    if (done) toast(done);
  } catch (error) {
    const failure = /** @type {Failure} */ (error);
    toast([h("p", {}, failure.message), failure.advice && h("p", { class: "small" }, failure.advice)], "bad");
  }
}

/**
 * A form in a dialog. `fields` builds its content; `submit` gets its values, and the dialog closes when it succeeds.
 * @param {string} title @param {any} fields @param {string} action @param {(values: Record<string, string>) => Promise<any>} submit
 * @param {{kind?: string, busy?: string}} [options]
 */
export function dialog(title, fields, action, submit, { kind = "primary", busy = "Working …" } = {}) {
  const problem = h("div", { class: "dialog-problem" });
  const confirm = h("button", { type: "submit", class: `button ${kind}` }, action);
  const box = h(
    "dialog",
    { "aria-labelledby": "dialog-title", onclose: () => box.remove() },
    h(
      "form",
      {
        method: "dialog",
        onsubmit: async (/** @type {SubmitEvent} */ event) => {
          event.preventDefault();
          const form = /** @type {HTMLFormElement} */ (event.target);
          const values = /** @type {any} */ (Object.fromEntries(new FormData(form)));
          confirm.disabled = true;
          confirm.textContent = busy;
          fill(problem);
          try {
            await submit(values);
            box.close();
          } catch (error) {
            fill(problem, failed(error));
          } finally {
            confirm.disabled = false;
            confirm.textContent = action;
          }
        },
      },
      h("div", { class: "dialog-header" }, h("h2", { id: "dialog-title" }, title), button("", () => box.close(), { symbol: "close", kind: "plain", label: "Close" })),
      h("div", { class: "dialog-body" }, fields, problem),
      h("div", { class: "dialog-footer" }, button("Cancel", () => box.close()), confirm),
    ),
  );
  document.body.append(box);
  box.showModal();
  return box;
}

/** A labelled field. @param {string} label @param {any} control @param {any} [hint] */
export function field(label, control, hint) {
  const id = `field-${control.getAttribute("name")}`;
  control.id = id;
  if (hint) control.setAttribute("aria-describedby", `${id}-hint`);
  return h("div", { class: "field" }, h("label", { for: id }, label), control, hint && h("p", { class: "quiet small", id: `${id}-hint` }, hint));
}

/** @param {string} name @param {[string, string][]} options values and texts @param {string} [chosen] */
export function select(name, options, chosen) {
  const made = h("select", { name }, options.map(([value, text]) => h("option", { value }, text)));
  if (chosen !== undefined) made.value = chosen;
  return made;
}

/** Tabs that are links, so that they work with the history and the keyboard of the browser. @param {string} base @param {[string, string][]} tabs @param {string} current */
export function tabs(base, tabs, current) {
  return h(
    "nav",
    { class: "tabs", "aria-label": "Parts of this page", key: "tabs" },
    tabs.map(([name, title]) => h("a", { href: name ? `${base}?tab=${name}` : base, "aria-current": name === current ? "page" : undefined }, title)),
  );
}

/** What a fetched part of a page shows while it is on its way, and if it fails. @param {{data?: any, error?: any}} loaded @param {(data: any) => any} show */
export function loaded(loaded, show) {
  if (loaded.error) return failed(loaded.error);
  if (loaded.data === undefined) return h("p", { class: "quiet loading" }, "Loading …");
  return show(loaded.data);
}
