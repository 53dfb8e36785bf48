// Logs in: with the one-time code in the fragment of the address, or with the token that a person enters.

// @ts-check

import { Failure, send, settings } from "./api.js";
import { fill, h } from "./dom.js";
import { failed } from "./ui.js";

const problem = h("div", { class: "login-problem" });
const token = h("input", { name: "token", type: "password", id: "token", autocomplete: "off", required: true, spellcheck: "false" });

/** @param {string} code */
async function logIn(code) {
  fill(problem);
  try {
    await send("POST", "/api/login", { code });
    location.replace("/");
  } catch (error) {
    fill(problem, failed(/** @type {Failure} */ (error)));
  }
}

document.documentElement.dataset.theme = localStorage.getItem("theme") ?? "";
const code = location.hash.slice(1);
// The code is used up in a moment; it should not stay in the history either.
history.replaceState(null, "", "/login");
document.body.append(
  h(
    "main",
    { class: "login-card" },
    h("div", { class: "brand" }, h("span", { class: "mark", "aria-hidden": "true" }), h("span", {}, "Sandpool")),
    h("p", { class: "quiet" }, settings.title),
    problem,
    h(
      "form",
      {
        onsubmit: (/** @type {Event} */ event) => {
          event.preventDefault();
          logIn(token.value);
        },
      },
      h("div", { class: "field" }, h("label", { for: "token" }, "Token or one-time code"), token),
      h("button", { type: "submit", class: "button primary wide" }, "Log in"),
    ),
    h("p", { class: "quiet small" }, "For a link that logs in, run ", h("code", {}, "sandpool dashboard"), "."),
  ),
);
if (code) logIn(code);
