// The log of a sandbox's main process, followed.

// @ts-check

import { open, path } from "./api.js";
import { h } from "./dom.js";
import { button, empty, failed } from "./ui.js";

/** Characters that stay on the page. */
const MOST = 500_000;

/** @param {string} key */
export function logView(key) {
  const output = h("pre", { class: "log", tabindex: "0", role: "log", "aria-label": "Log of the main process" });
  // The response begins with the first line of the log, so until then this is what there is to see.
  const silence = empty("The main process has printed nothing yet", "What it prints appears here at once. The output of commands and terminals is not part of this log.");
  const status = h("span", { class: "quiet small", role: "status" }, "Following …");
  const again = h("span", {});
  const element = h("div", { class: "card", keep: `logs:${key}` }, silence, output, h("div", { class: "toolbar" }, status, again));
  let stop = new AbortController();
  let closed = false;

  async function follow() {
    again.replaceChildren();
    show("");
    status.textContent = "Following …";
    stop = new AbortController();
    try {
      const response = await open(path("sandboxes", key, "/logs"), { signal: stop.signal });
      const reader = response.body?.pipeThrough(new TextDecoderStream()).getReader();
      for (;;) {
        const { done, value } = (await reader?.read()) ?? { done: true, value: "" };
        if (done) break;
        add(value);
      }
      status.textContent = "The log has ended.";
    } catch (error) {
      if (closed) return;
      silence.hidden = true;
      status.replaceChildren(failed(error));
    }
    if (!closed) again.replaceChildren(button("Follow again", follow));
  }

  /** @param {string} text */
  function add(text) {
    const atEnd = output.scrollHeight - output.scrollTop - output.clientHeight < 30;
    // Colours of a terminal mean nothing here.
    output.append(text.replace(/\x1b\[[0-9;?]*[ -/]*[@-~]/g, "").replace(/\r\n/g, "\n"));
    show(output.textContent.length > MOST ? output.textContent.slice(-MOST / 2) : null);
    if (atEnd) output.scrollTop = output.scrollHeight;
  }

  /** Show the log, or that there is none. @param {string | null} text the log; null leaves it as it is */
  function show(text) {
    if (text !== null) output.textContent = text;
    const nothing = !output.textContent.trim();
    silence.hidden = !nothing;
    output.hidden = nothing;
  }

  follow();
  return {
    element,
    close() {
      closed = true;
      stop.abort();
    },
  };
}
