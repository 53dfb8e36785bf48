// Runs code in a sandbox and shows what it prints, returns and raises.

// @ts-check

import { path, send } from "./api.js";
import { h } from "./dom.js";
import { milliseconds } from "./format.js";
import { empty, failed, select } from "./ui.js";

/** @type {Record<string, string>} */
const EXAMPLES = { python: "import platform\nplatform.platform()", sh: "uname -a; df -h /" };

/** @param {string} key */
export function runView(key) {
  const language = select("language", [["python", "Python"], ["sh", "Shell"]]);
  language.setAttribute("aria-label", "Language");
  const code = h("textarea", { class: "code", "aria-label": "Code. Ctrl+Enter runs it.", spellcheck: "false", autocapitalize: "off", rows: "6", value: EXAMPLES.python });
  const go = h("button", { type: "submit", class: "button primary" }, "Run");
  const results = h("div", { class: "results", role: "log", "aria-label": "Results" }, empty("No results yet", "Python keeps its names from one run to the next. Ctrl+Enter runs the code."));
  let begun = false;

  language.addEventListener("change", () => {
    if (Object.values(EXAMPLES).includes(code.value)) code.value = EXAMPLES[language.value];
  });

  async function run() {
    if (go.disabled) return;
    go.disabled = true;
    go.textContent = "Running …";
    const started = performance.now();
    const asked = { code: code.value, language: language.value };
    /** @type {any} */
    let shown;
    try {
      shown = resultCard(await send("POST", path("sandboxes", key, "/run"), asked), asked, performance.now() - started);
    } catch (error) {
      shown = h("div", { class: "result" }, h("pre", { class: "asked" }, asked.code), failed(error));
    }
    if (!begun) results.replaceChildren();
    begun = true;
    results.prepend(shown);
    go.disabled = false;
    go.textContent = "Run";
  }

  const form = h(
    "form",
    {
      class: "run card",
      onsubmit: (/** @type {Event} */ event) => {
        event.preventDefault();
        run();
      },
    },
    code,
    h("div", { class: "toolbar end" }, language, go),
  );
  code.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      run();
    }
  });
  return { element: h("div", { class: "parts", keep: `run:${key}` }, form, results), close() {} };
}

/** @param {any} result @param {{code: string, language: string}} asked @param {number} took */
function resultCard(result, asked, took) {
  const failedRun = Boolean(result.error) || (result.exitCode !== null && result.exitCode !== 0);
  const nothing = !result.stdout && !result.stderr && !result.error && !result.results.length;
  return h(
    "article",
    { class: `result ${failedRun ? "bad" : ""}` },
    h("header", {}, h("span", {}, result.timedOut ? "Stopped after 2 minutes" : result.error ? "Raised an exception" : result.exitCode ? `Exit code ${result.exitCode}` : "Done"), h("span", { class: "quiet" }, `${asked.language === "python" ? "Python" : "Shell"} · ${milliseconds(took)}`)),
    h("pre", { class: "asked" }, asked.code),
    result.stdout && h("pre", { class: "stdout" }, result.stdout),
    result.stderr && h("pre", { class: "stderr" }, result.stderr),
    result.results.map((/** @type {any} */ each) => [
      each.png && h("img", { src: `data:image/png;base64,${each.png}`, alt: each.text || "Figure" }),
      !each.png && each.jpeg && h("img", { src: `data:image/jpeg;base64,${each.jpeg}`, alt: each.text || "Figure" }),
      !each.png && !each.jpeg && h("pre", { class: "value" }, each.text),
    ]),
    result.error && h("pre", { class: "stderr" }, result.error),
    result.truncated && h("p", { class: "quiet small" }, "Some of the output was left out."),
    nothing && h("p", { class: "quiet small" }, "It printed nothing."),
  );
}
