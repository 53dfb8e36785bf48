// A terminal in the page: draws a screen, sends keys, and talks to a shell in a sandbox.

// @ts-check

import { path, settings } from "./api.js";
import { h } from "./dom.js";
import { button } from "./ui.js";
import { Screen, keySequence } from "./vt.js";

const encoder = new TextEncoder();
/** Keys that the keyboards of phones do not have: text, name and label. @type {[string, string, string][]} */
const TOUCH_KEYS = [["Esc", "Escape", "Escape"], ["Tab", "Tab", "Tab"], ["←", "ArrowLeft", "Left"], ["↑", "ArrowUp", "Up"], ["↓", "ArrowDown", "Down"], ["→", "ArrowRight", "Right"]];

/** A terminal for a sandbox. `close` ends the shell. @param {string} key */
export function terminal(key) {
  const history = h("div", { class: "terminal-history", "aria-hidden": "true" });
  const lines = h("div", { class: "terminal-lines", role: "log", "aria-label": "Output of the terminal" });
  const probe = h("span", { class: "terminal-probe", "aria-hidden": "true" }, "M".repeat(20));
  const input = h("textarea", { class: "terminal-input", "aria-label": "Terminal. Shift+Tab leaves it.", autocapitalize: "off", autocomplete: "off", autocorrect: "off", spellcheck: "false", rows: "1" });
  const view = h("div", { class: "terminal-view" }, history, lines, probe, input);
  const status = h("p", { class: "quiet small", role: "status" }, "Connecting …");
  const again = h("span", {});
  const keys = h("div", { class: "terminal-keys", role: "group", "aria-label": "Keys" }, keyButton("Ctrl", toggleControl, "Ctrl, for the next key"), TOUCH_KEYS.map(([text, key, label]) => keyButton(text, () => press(key), label)));
  const frame = h("div", { class: "terminal", keep: `terminal:${key}` }, view, keys, h("div", { class: "terminal-footer" }, status, again));

  /** @type {WebSocket | null} */
  let socket = null;
  let closed = false;
  let drawn = false;
  const screen = new Screen(80, 24, (text) => send(text));
  /** Versions of the lines as they are drawn. @type {number[]} */
  let versions = [];
  let drawnHistory = 0;
  let cursor = -1;

  function connect() {
    const url = new URL(path("sandboxes", key, "/terminal"), location.href);
    url.protocol = location.protocol === "https:" ? "wss:" : "ws:";
    const decoder = new TextDecoder();
    socket = new WebSocket(url, ["sandpool", `session.${settings.session}`]);
    socket.binaryType = "arraybuffer";
    screen.reset();
    history.replaceChildren();
    drawnHistory = 0;
    again.replaceChildren();
    let told = "";
    socket.onopen = () => {
      status.textContent = "Connected. Shift+Tab leaves the terminal.";
      measure(true);
      input.focus({ preventScroll: true });
    };
    socket.onmessage = ({ data }) => {
      if (typeof data === "string") {
        const message = JSON.parse(data);
        told = message.error ?? `The shell ended with exit code ${message.exitCode}.`;
        return;
      }
      screen.write(decoder.decode(data, { stream: true }));
      draw();
    };
    socket.onclose = () => {
      socket = null;
      if (closed) return;
      status.textContent = told || "The connection to the terminal is lost.";
      again.replaceChildren(button("New shell", connect));
    };
  }

  /** A key for fingers. It leaves the focus, and so the keyboard of a phone, where it is. @param {string} text @param {() => void} act @param {string} label */
  function keyButton(text, act, label) {
    return h("button", { type: "button", class: "button", "aria-label": label, onpointerdown: (/** @type {Event} */ event) => event.preventDefault(), onclick: act }, text);
  }

  /** Whether the next key is typed with Ctrl. */
  let control = false;

  function toggleControl() {
    control = !control;
    keys.firstChild.setAttribute("aria-pressed", String(control));
  }

  /** @param {string} key */
  function press(key) {
    const sequence = keySequence(new KeyboardEvent("keydown", { key, ctrlKey: control }), screen.applicationKeys);
    if (control) toggleControl();
    if (sequence !== null) send(sequence);
  }

  /** Send what was typed, with Ctrl if that key was pressed. @param {string} text */
  function typed(text) {
    if (control && text.length === 1) press(text);
    else send(text);
  }

  /** @param {string} text */
  function send(text) {
    if (socket?.readyState === WebSocket.OPEN) socket.send(encoder.encode(text));
  }

  function draw() {
    if (drawn) return;
    drawn = true;
    requestAnimationFrame(() => {
      drawn = false;
      const atEnd = view.scrollHeight - view.scrollTop - view.clientHeight < 30;
      drawHistory();
      drawLines();
      if (atEnd) view.scrollTop = view.scrollHeight;
    });
  }

  function drawHistory() {
    const end = screen.dropped + screen.scrollback.length;
    if (drawnHistory < screen.dropped) {
      const gone = Math.min(history.childElementCount, screen.dropped - (drawnHistory - history.childElementCount));
      for (let n = 0; n < gone; n += 1) history.firstElementChild?.remove();
      drawnHistory = Math.max(drawnHistory, screen.dropped);
    }
    while (history.childElementCount > end - screen.dropped) history.firstElementChild?.remove();
    for (; drawnHistory < end; drawnHistory += 1) history.append(lineElement(screen.scrollback[drawnHistory - screen.dropped].cells, -1));
  }

  function drawLines() {
    const at = screen.cursorVisible ? screen.y : -1;
    screen.lines.forEach((line, y) => {
      const version = y === at ? line.version + (screen.x + 1) / 10_000 : line.version;
      if (versions[y] === version && lines.children[y] && y !== cursor) return;
      const fresh = lineElement(line.cells, y === at ? screen.x : -1);
      if (lines.children[y]) lines.children[y].replaceWith(fresh);
      else lines.append(fresh);
      versions[y] = version;
    });
    cursor = at;
    while (lines.childElementCount > screen.rows) lines.lastElementChild?.remove();
    versions.length = screen.rows;
    input.style.setProperty("--x", String(screen.x));
    input.style.setProperty("--y", String(screen.y));
  }

  /** Fit the screen to its frame, and tell the shell. @param {boolean} always */
  function measure(always = false) {
    const cell = probe.getBoundingClientRect();
    if (!cell.width) return;
    frame.style.setProperty("--above", `${Math.round(view.getBoundingClientRect().top + scrollY)}px`);
    const columns = Math.max(20, Math.min(500, Math.floor((view.clientWidth - 20) / (cell.width / 20))));
    const rows = Math.max(6, Math.min(200, Math.floor((view.clientHeight - 16) / cell.height)));
    if (!always && columns === screen.columns && rows === screen.rows) return;
    screen.resize(columns, rows);
    versions = [];
    if (socket?.readyState === WebSocket.OPEN) socket.send(JSON.stringify({ columns, rows }));
    draw();
  }

  input.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
    if (event.isComposing) return;
    // Copying works as everywhere: Ctrl+C with a selection, Ctrl+Shift+C without.
    if (event.ctrlKey && event.key.toLowerCase() === "c" && (event.shiftKey || String(getSelection()))) {
      navigator.clipboard?.writeText(String(getSelection()));
      event.preventDefault();
      return;
    }
    if (event.ctrlKey && event.key.toLowerCase() === "v") return;
    const sequence = keySequence(event, screen.applicationKeys);
    if (sequence === null) return;
    event.preventDefault();
    view.scrollTop = view.scrollHeight;
    send(sequence);
  });
  input.addEventListener("input", (/** @type {any} */ event) => {
    if (event.isComposing) return;
    typed(input.value);
    input.value = "";
  });
  input.addEventListener("compositionend", () => {
    send(input.value);
    input.value = "";
  });
  input.addEventListener("paste", (/** @type {ClipboardEvent} */ event) => {
    event.preventDefault();
    // A pasted text cannot end the paste by itself.
    const text = (event.clipboardData?.getData("text") ?? "").replace(/\r?\n/g, "\r").replaceAll("\x1b[201~", "");
    send(screen.bracketedPaste ? `\x1b[200~${text}\x1b[201~` : text);
  });
  view.addEventListener("mouseup", () => {
    if (!String(getSelection())) input.focus({ preventScroll: true });
  });
  const observer = new ResizeObserver(() => measure());
  observer.observe(view);
  connect();
  return {
    element: frame,
    close() {
      closed = true;
      observer.disconnect();
      socket?.close();
    },
  };
}

/** @param {import("./vt.js").Cell[]} cells @param {number} cursor column, -1 for none */
function lineElement(cells, cursor) {
  const line = h("div", { class: "terminal-line" });
  let text = "";
  /** @type {any} */
  let style = null;
  const flush = () => {
    if (text) line.append(spanElement(text, style, false));
    text = "";
  };
  cells.forEach((cell, x) => {
    if (x === cursor) {
      flush();
      line.append(spanElement(cell.text || " ", cell.style, true));
      style = null;
      return;
    }
    if (cell.style !== style) {
      flush();
      style = cell.style;
    }
    text += cell.text;
  });
  flush();
  return line;
}

/** @param {string} text @param {import("./vt.js").Style} style @param {boolean} cursor */
function spanElement(text, style, cursor) {
  let { fg, bg } = style;
  const classes = [];
  if (style.inverse) classes.push("inverse");
  for (const name of /** @type {const} */ (["bold", "dim", "italic", "underline", "strike", "hidden"])) if (style[name]) classes.push(name);
  const span = h("span", {}, text);
  for (const [name, colour] of [["fg", fg], ["bg", bg]]) {
    if (!colour) continue;
    classes.push(name);
    span.style.setProperty(`--${name}`, colour.startsWith("#") ? colour : `var(--ansi-${colour})`);
  }
  if (cursor) classes.push("cursor");
  if (classes.length) span.className = classes.join(" ");
  return span;
}
