// The waterfall of a claim: every API call and every reconcile about it, its sandbox and its pod, on axes of time.
//
// A warm sandbox is made long before it is claimed, and is read and written long after. The time from the claim to its
// readiness is a few milliseconds in between, so it has an axis of its own, and the two other parts can be opened.

// @ts-check

import { h } from "./dom.js";
import { duration, milliseconds } from "./format.js";

/** A wait that ends the part of the claim, in ms. */
const PAUSE = 500;
/** A wait that is left out of an axis, in ms, and what is drawn instead. */
const BREAK = 2000;
const SHOWN_BREAK = 60;

/** @param {{steps: any[], more: number, hasSandbox: boolean}} trace @param {string} name of the claim */
export function waterfall(trace, name) {
  if (!trace.steps.length) return h("p", { class: "quiet" }, "The audit log has no call about this claim: it may be older than the log.");
  const { before, claim, after } = parts(trace.steps, name);
  const first = claim[0] ?? before[0];
  const end = Math.max(...claim.map((step) => step.start + step.took));
  return [
    claim.length > 0 && h("p", { class: "quiet waterfall-lead" }, `From its creation to its last step: ${milliseconds(end - first.start)}, with ${claim.filter((step) => step.kind === "write").length} writes and ${claim.filter((step) => step.kind === "reconcile").length} reconciles.`),
    claim.length > 0 && axis(claim, "The claim", first.start),
    before.length > 0 && folded(`Before: ${trace.hasSandbox ? "how its sandbox came to be, " : ""}${counted(before)}`, axis(before, "Before", before[0].start)),
    after.length > 0 && folded(`Since then: ${counted(after)}`, axis(after, "Since then", first.start)),
    trace.more > 0 && h("p", { class: "quiet" }, `and ${trace.more} later steps; all of them: sandpool trace claim ${name}`),
    h("p", { class: "legend small quiet" }, legend("write", "write"), legend("read", "read"), legend("reconcile", "reconcile"), legend("refused", "refused")),
  ];
}

/** @param {any[]} steps @param {string} name */
function parts(steps, name) {
  const begin = steps.findIndex((step) => step.creates && step.about === `sandboxclaims/${name}`);
  if (begin < 0) return { before: steps, claim: [], after: [] };
  let finish = begin + 1;
  let end = steps[begin].start + steps[begin].took;
  while (finish < steps.length && steps[finish].start - end < PAUSE && !isLookedAt(steps[finish])) {
    end = Math.max(end, steps[finish].start + steps[finish].took);
    finish += 1;
  }
  return { before: steps.slice(0, begin), claim: steps.slice(begin, finish), after: steps.slice(finish) };
}

/** Whether a step is a command or a look into the sandbox, after it was handed out. @param {any} step */
function isLookedAt(step) {
  return step.about.endsWith("/exec") || step.about.endsWith("/portforward") || step.about.endsWith("/log");
}

/** @param {any[]} steps */
function counted(steps) {
  return `${steps.length} step${steps.length === 1 ? "" : "s"}`;
}

/** @param {string} title @param {any} content */
function folded(title, content) {
  return h("details", { key: title.split(":")[0] }, h("summary", {}, title), content);
}

/** @param {string} kind @param {string} text */
function legend(kind, text) {
  return h("span", { class: `step ${kind}` }, h("span", { class: "step-bar" }), text);
}

/** @param {any[]} steps @param {string} label @param {number} zero the time that the texts count from */
function axis(steps, label, zero) {
  const { placed, span } = compressed(steps);
  return h(
    "ol",
    { class: "waterfall", "aria-label": `${label}: API calls and reconciles, by time` },
    placed.map((step, index) => [
      step.gap > 0 && h("li", { class: "gap", key: `gap${index}` }, `${duration(step.gap / 1000)} later`),
      h(
        "li",
        { key: index, class: `step ${step.kind} ${/^[45]|error/.test(step.result) ? "refused" : ""}` },
        h("span", { class: "step-what" }, h("strong", {}, step.verb), " ", h("span", { title: step.about }, step.about)),
        h("span", { class: "step-lane", "aria-hidden": "true" }, h("span", { class: "step-bar", vars: { from: step.at / span, width: step.took / span } })),
        h("span", { class: "step-took" }, milliseconds(step.took)),
        h("span", { class: "step-why" }, step.purpose, step.purpose && " ", h("span", { class: "quiet" }, `${step.who} · ${step.result} · at ${milliseconds(step.start - zero)}`)),
      ),
    ]),
  );
}

/** Place steps on an axis on which long waits are short. @param {any[]} steps */
function compressed(steps) {
  const begin = steps[0].start;
  let removed = 0;
  let end = 0;
  const placed = steps.map((step, index) => {
    const start = step.start - begin;
    const wait = start - end;
    let gap = 0;
    if (index > 0 && wait > BREAK) {
      gap = wait;
      removed += wait - SHOWN_BREAK;
    }
    end = Math.max(end, start + step.took);
    return { ...step, gap, at: start - removed };
  });
  return { placed, span: Math.max(0.1, ...placed.map((step) => step.at + step.took)) };
}
