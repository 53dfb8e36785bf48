// Elements without HTML strings. All text becomes text nodes, so nothing of a sandbox can become markup; the content
// security policy (require-trusted-types-for) refuses every other way.
//
// A view builds its elements anew for every change, and `morph` carries the differences over to the page. Focus,
// scroll positions and typed text stay, because elements that still exist stay.

// @ts-check

const SVG = "http://www.w3.org/2000/svg";
const SVG_TAGS = new Set(["svg", "path", "line", "circle", "rect", "g", "title", "polyline"]);

/**
 * Make an element. Properties that begin with "on" are listeners; `key` identifies an element among its siblings;
 * `keep` marks a widget that changes its content itself. Children that are null or false are left out.
 * @param {string} tag @param {Record<string, any>} [properties] @param {...any} children
 * @returns {any}
 */
export function h(tag, properties = {}, ...children) {
  const inSvg = SVG_TAGS.has(tag) && tag !== "title";
  /** @type {any} */
  const element = inSvg || tag === "title" ? document.createElementNS(SVG, tag) : document.createElement(tag);
  element.listeners = {};
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) listen(element, name.slice(2), value);
    else if (name === "key") element.key = value;
    else if (name === "keep") element.keep = element.key = value;
    else if (name === "vars") setVariables(element, value);
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  append(element, children);
  return element;
}

/** @param {any} element @param {any[]} children */
function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? standIn(child) : document.createTextNode(String(child)));
  }
}

/** A widget that is on the page stays where it is while new elements are built; this stands for it there. */
function standIn(/** @type {any} */ child) {
  if (!child.keep || !child.isConnected) return child;
  const made = h(child.nodeName.toLowerCase(), { keep: child.keep, "data-stands-in": "" });
  made.widget = child;
  return made;
}

/** What to put on the page for a new element: itself, with the widgets for which others stand in. */
function settled(/** @type {any} */ fresh) {
  if (fresh.widget) return fresh.widget;
  for (const each of fresh.querySelectorAll?.("[data-stands-in]") ?? []) each.replaceWith(each.widget);
  return fresh;
}

/** Custom properties are the one way to style by data: a policy without inline styles allows them from scripts. */
function setVariables(/** @type {any} */ element, /** @type {Record<string, any>} */ variables) {
  element.variables = variables;
  for (const [name, value] of Object.entries(variables)) element.style.setProperty(`--${name}`, String(value));
}

/** @param {any} element @param {string} type @param {(event: any) => void} handler */
function listen(element, type, handler) {
  if (!(type in element.listeners)) {
    element.addEventListener(type, (/** @type {Event} */ event) => element.listeners[type]?.(event));
  }
  element.listeners[type] = handler;
}

/** Make `parent` contain what `children` describe. @param {any} parent @param {any[]} children */
export function fill(parent, ...children) {
  const fresh = document.createDocumentFragment();
  append(fresh, children);
  morphChildren(parent, fresh);
}

/** @param {any} old @param {any} fresh */
function morphChildren(old, fresh) {
  const keyed = new Map();
  for (const child of old.childNodes) if (child.key !== undefined) keyed.set(child.key, child);
  let place = old.firstChild;
  for (const wanted of [...fresh.childNodes]) {
    let match = null;
    if (wanted.key !== undefined) match = keyed.get(wanted.key) ?? null;
    else if (place && place.key === undefined) match = place;
    if (match && match.nodeName === wanted.nodeName) {
      if (match === place) place = place.nextSibling;
      else old.insertBefore(match, place);
      keyed.delete(match.key);
      morph(match, wanted);
    } else {
      old.insertBefore(settled(wanted), place);
    }
  }
  while (place) {
    const next = place.nextSibling;
    place.remove();
    place = next;
  }
  for (const left of keyed.values()) if (left.parentNode === old) left.remove();
}

/** @param {any} old @param {any} fresh */
function morph(old, fresh) {
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return;
  }
  if (old.keep && old.keep === fresh.keep) return;
  if (old.keep !== fresh.keep) {
    old.replaceWith(settled(fresh));
    return;
  }
  for (const name of old.getAttributeNames()) {
    // An open dialog or <details> is opened by its user.
    if (!fresh.hasAttribute(name) && name !== "open" && name !== "style") old.removeAttribute(name);
  }
  for (const name of fresh.getAttributeNames()) {
    if (name !== "style" && old.getAttribute(name) !== fresh.getAttribute(name)) old.setAttribute(name, fresh.getAttribute(name));
  }
  if (fresh.variables) setVariables(old, fresh.variables);
  for (const [type, handler] of Object.entries(fresh.listeners ?? {})) listen(old, type, /** @type {any} */ (handler));
  for (const type of Object.keys(old.listeners ?? {})) if (!(type in fresh.listeners)) delete old.listeners[type];
  morphChildren(old, fresh);
}

/** An icon of the set below. @param {string} name */
export function icon(name) {
  return h("svg", { class: "icon", viewBox: "0 0 20 20", "aria-hidden": "true" }, h("path", { d: ICONS[name] }));
}

/** Paths on a grid of 20, drawn as strokes. @type {Record<string, string>} */
const ICONS = {
  overview: "M3 3h6v6H3zM11 3h6v6h-6zM3 11h6v6H3zM11 11h6v6h-6z",
  pools: "M3 6c0-1.7 3-3 7-3s7 1.3 7 3-3 3-7 3-7-1.3-7-3zM3 6v8c0 1.7 3 3 7 3s7-1.3 7-3V6M3 10c0 1.7 3 3 7 3s7-1.3 7-3",
  claims: "M4 10.5l4 4 8-9",
  sandboxes: "M10 2.5l7 3.8v7.4l-7 3.8-7-3.8V6.3zM3 6.3l7 3.9 7-3.9M10 10.2v7.3",
  nodes: "M3 4h14v5H3zM3 11h14v5H3zM6 6.5h.01M6 13.5h.01",
  controllers: "M2.5 11h3.5l2.5-7 3.5 12 2.5-7h3",
  plus: "M10 4v12M4 10h12",
  close: "M5 5l10 10M15 5L5 15",
  back: "M12 4l-6 6 6 6",
  sun: "M10 6.5a3.5 3.5 0 100 7 3.5 3.5 0 000-7zM10 2v1.5M10 16.5V18M2 10h1.5M16.5 10H18M4.3 4.3l1.1 1.1M14.6 14.6l1.1 1.1M4.3 15.7l1.1-1.1M14.6 5.4l1.1-1.1",
  leave: "M8 4H4v12h4M12 6l4 4-4 4M16 10H8",
  external: "M8 4H4v12h12v-4M11 4h5v5M16 4l-7 7",
  folder: "M2.5 5h5l2 2h8v8.5h-15z",
  file: "M5 2.5h6.5L15 6v11.5H5zM11 2.5V6.5h4",
  link: "M8.5 11.5a3 3 0 004.5.5l2.5-2.5a3 3 0 00-4.3-4.3L10 6.5M11.5 8.5a3 3 0 00-4.5-.5L4.5 10.5a3 3 0 004.3 4.3L10 13.5",
  download: "M10 3v9M6 8.5l4 4 4-4M4 16.5h12",
  upload: "M10 13V4M6 7.5l4-4 4 4M4 16.5h12",
  warning: "M10 3L2 17h16zM10 8.5v4M10 15h.01",
  check: "M4 10.5l4 4 8-9",
};
