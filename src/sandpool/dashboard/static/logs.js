// The log of a sandbox's main process, followed.

// @ts-check

import { open, path } from "./api.js";
import { h } from "./dom.js";
import { button, failed } from "./ui.js";

/** Characters that stay on the page. */
const MOST = 500_000;

/** @param {string} key */
export function logView(key) {
  const output = h("pre", { class: "log", tabindex: "0", role: "log", "aria-label": "Log of the main process" });
  const status = h("span", { class: "quiet small", role: "status" }, "Following …");
  const again = h("span", {});
  const element = h("div", { class: "card", keep: `logs:${key}` }, output, h("div", { class: "toolbar" }, status, again));
  let stop = new AbortController();
  let closed = false;

  async function follow() {
    again.replaceChildren();
    output.textContent = "";
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
      status.replaceChildren(failed(error));
    }
    if (!closed) again.replaceChildren(button("Follow again", follow));
  }

  /** @param {string} text */
  function add(text) {
    const atEnd = output.scrollHeight - output.scrollTop - output.clientHeight < 30;
    // Colours of a terminal mean nothing here.
    output.append(text.replace(/\x1b\[[0-9;?]*[ -/]*[@-~]/g, "").replace(/\r\n/g, "\n"));
    if (output.textContent.length > MOST) output.textContent = output.textContent.slice(-MOST / 2);
    if (!output.textContent.trim()) status.textContent = "The main process has printed nothing yet. Following …";
    else status.textContent = "Following …";
    if (atEnd) output.scrollTop = output.scrollHeight;
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
