// What `sandpool why` says about an object, asked again whenever the object changes.

// @ts-check

import { path, read } from "./api.js";
import { h } from "./dom.js";
import { moment } from "./format.js";
import { changed } from "./store.js";
import { loaded, notice, section } from "./ui.js";

/** Milliseconds in which changes are collected before the explanation is asked for again. */
const PAUSE = 400;

/** @param {string} kind @param {string} key */
export function whyCard(kind, key) {
  /** @type {{data?: any, error?: any}} */
  let answer = {};
  /** @type {string | null} */
  let asked = null;
  let closed = false;
  let open = false;
  /** @type {any} */
  let timer;

  async function ask() {
    try {
      answer = { data: await read(path(`why/${kind}`, key)) };
    } catch (error) {
      answer = { error };
    }
    if (!closed) changed();
  }

  return {
    /** `state` is what the explanation depends on. @param {string} state */
    draw(state) {
      if (state !== asked) {
        const first = asked === null;
        asked = state;
        clearTimeout(timer);
        timer = setTimeout(ask, first ? 0 : PAUSE);
      }
      return section(
        "Why",
        loaded(answer, (data) => [
          h("p", { class: "sentence" }, data.sentence),
          data.advice && notice(h("p", {}, h("strong", {}, "To do: "), `${data.advice}.`)),
          data.chain.length > 0 &&
            h(
              "details",
              { ontoggle: (/** @type {any} */ event) => (open = event.target.open), open: open || undefined },
              h("summary", {}, `How it came to this: ${data.chain.length} steps`),
              h("ol", { class: "chain" }, inOrder(data.chain).map((/** @type {any} */ link) => h("li", {}, h("time", {}, link.at === null ? "" : moment(link.at)), h("span", {}, link.text)))),
            ),
          data.unknown.length > 0 && h("p", { class: "quiet small" }, `Unknown, because reading it is forbidden: ${data.unknown.join("; ")}`),
        ]),
        null,
        "why",
      );
    },
    close() {
      closed = true;
      clearTimeout(timer);
    },
  };
}

/** Links by their time; those without one describe the present, so they are last. @param {any[]} chain */
function inOrder(chain) {
  return [...chain].sort((a, b) => (a.at ?? Infinity) - (b.at ?? Infinity) || 0);
}
