// The board in the browser: rows of all objects, samples and usage, as the live stream brings them.

// @ts-check

import { Failure, open } from "./api.js";

const KINDS = ["pools", "templates", "claims", "sandboxes", "nodes"];
const SAMPLES = 360;
const RECONNECT_MS = [300, 1000, 2000, 5000];
/** Seconds without a word of the API after which what is shown may be old. */
const STALE = 160;

export const store = {
  /** @type {Record<string, Map<string, any>>} */
  rows: Object.fromEntries(KINDS.map((kind) => [kind, new Map()])),
  /** @type {any[]} */
  samples: [],
  /** @type {{sandboxes: Record<string, [number | null, number]>, problems: string[]}} */
  usage: { sandboxes: {}, problems: [] },
  /** Kinds that could not be read so far, with the reason. @type {Record<string, string>} */
  unseen: {},
  loaded: false,
  connected: false,
  stale: false,
};

/** @type {Set<() => void>} */
const listeners = new Set();
let scheduled = false;

/** Call `listener` once per frame in which something changed. @param {() => void} listener */
export function subscribe(listener) {
  listeners.add(listener);
}

export function changed() {
  if (scheduled) return;
  scheduled = true;
  // A page in the background gets no frames; it catches up when it is shown.
  (document.hidden ? setTimeout : requestAnimationFrame)(() => {
    scheduled = false;
    for (const listener of listeners) listener();
  });
}

/** @type {Record<string, (data: any) => void>} */
const HANDLERS = {
  rows(data) {
    if (data.all) for (const map of Object.values(store.rows)) map.clear();
    for (const [kind, rows] of Object.entries(data.rows)) {
      for (const [key, row] of Object.entries(rows)) {
        if (row === null) store.rows[kind].delete(key);
        else store.rows[kind].set(key, { ...row, key, namespace: key.slice(0, Math.max(0, key.indexOf("/"))), name: key.slice(key.indexOf("/") + 1) });
      }
    }
    if (data.unseen) store.unseen = data.unseen;
    store.loaded = true;
  },
  history(data) {
    store.samples = data;
  },
  sample(data) {
    store.samples.push(data);
    if (store.samples.length > SAMPLES) store.samples.shift();
    store.stale = data.age > STALE;
  },
  usage(data) {
    store.usage = data;
  },
};

/** Follow the live stream for ever. */
export async function follow() {
  for (let attempt = 0; ; attempt += 1) {
    try {
      const response = await open("/api/live");
      if (!response.body) return;
      attempt = 0;
      store.connected = true;
      changed();
      await consume(response.body.getReader());
    } catch (error) {
      if (error instanceof Failure && error.status === 401) return;
    }
    store.connected = false;
    changed();
    await new Promise((resolve) => setTimeout(resolve, RECONNECT_MS[Math.min(attempt, RECONNECT_MS.length - 1)]));
  }
}

/** @param {ReadableStreamDefaultReader<Uint8Array>} reader */
async function consume(reader) {
  const decoder = new TextDecoder();
  let buffer = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    buffer += decoder.decode(value, { stream: true });
    for (let end = buffer.indexOf("\n\n"); end >= 0; end = buffer.indexOf("\n\n")) {
      dispatch(buffer.slice(0, end));
      buffer = buffer.slice(end + 2);
    }
  }
}

/** @param {string} message */
function dispatch(message) {
  const [event, data] = message.split("\n");
  const handler = HANDLERS[event.replace("event: ", "")];
  if (!handler || !data) return;
  handler(JSON.parse(data.slice("data: ".length)));
  changed();
}

/** All rows of a kind. @param {string} kind @returns {any[]} */
export function all(kind) {
  return [...store.rows[kind].values()];
}

/** The sandbox of a claim. @param {any} claim */
export function sandboxOf(claim) {
  return claim.sandbox ? store.rows.sandboxes.get(`${claim.namespace}/${claim.sandbox}`) : undefined;
}

/** The claim of a sandbox. @param {any} sandbox */
export function claimOf(sandbox) {
  return sandbox.claim ? store.rows.claims.get(`${sandbox.namespace}/${sandbox.claim}`) : undefined;
}

/** What a claim is: its state in a word, and how urgent that is. @param {any} claim @returns {[string, string, string?]} */
export function claimState(claim) {
  if (claim.deleting) return ["Releasing", "muted"];
  if (sandboxOf(claim)?.suspended) return ["Suspended", "muted"];
  if (claim.ready) return ["Ready", "good"];
  if (!claim.reason) return ["Pending", "waiting"];
  return worded(claim.reason);
}

/**
 * The reasons of conditions in words, with their tone; the badge has the reason itself as its title.
 * @type {Record<string, [string, "good" | "waiting" | "bad" | "muted"]>}
 */
const REASONS = {
  AdoptionConflict: ["Adoption conflict", "bad"],
  ClaimExpired: ["Expired", "bad"],
  ClaimLimitReached: ["Limit of the namespace", "waiting"],
  CreationFailing: ["Creation fails", "bad"],
  DependenciesNotReady: ["Starting", "waiting"],
  DependenciesReady: ["Ready", "good"],
  EnvVarsInjectionRejected: ["Variables rejected", "bad"],
  EnvironmentNotBound: ["Variables not bound", "waiting"],
  InvalidMetadata: ["Invalid metadata", "bad"],
  MultiplePods: ["Several pods", "bad"],
  PodFailed: ["Failed", "bad"],
  PodSucceeded: ["Completed", "muted"],
  ProgressDeadlineExceeded: ["Makes no progress", "bad"],
  ReconcilerError: ["Cannot be made", "bad"],
  SandboxCreatePending: ["Being made", "waiting"],
  SandboxExpired: ["Sandbox expired", "bad"],
  SandboxMissing: ["Sandbox missing", "waiting"],
  SandboxNotReady: ["Starting", "waiting"],
  SandboxSuspended: ["Suspended", "muted"],
  SizeLimited: ["Limited in size", "bad"],
  TemplateNotFound: ["Template missing", "bad"],
  Unschedulable: ["No node takes it", "bad"],
  VolumeClaimTemplatesError: ["Volumes rejected", "bad"],
  WarmPoolNotFound: ["Pool missing", "bad"],
};

/** A reason in words. One that is not known is shown as words of its own. @param {string} reason @returns {[string, string, string]} */
export function worded(reason) {
  const [text, tone] = Object.hasOwn(REASONS, reason) ? REASONS[reason] : [reason.replace(/([a-z])([A-Z])/g, (_, before, after) => `${before} ${after.toLowerCase()}`), FAILED.test(reason) ? "bad" : "waiting"];
  return [text, tone, reason];
}

const FAILED = /Error|NotFound|Rejected|Invalid|Expired|Failed|Conflict/;

/** @param {any} sandbox @returns {[string, string, string?]} */
export function sandboxState(sandbox) {
  if (sandbox.deleting) return ["Terminating", "muted"];
  if (sandbox.suspended) return ["Suspended", "muted"];
  if (sandbox.ready) return ["Ready", "good"];
  return sandbox.reason ? worded(sandbox.reason) : ["Starting", "waiting"];
}

/** @param {any} pool @returns {[string, string, string?]} */
export function poolState(pool) {
  if (pool.problem) return pool.progress ? worded(pool.progress) : ["Stuck", "bad"];
  if (pool.failure) return ["Does not start", "bad"];
  if (pool.ready < pool.desired) return ["Refilling", "waiting"];
  if (!pool.rolledOut) return [pool.strategy === "OnReplenish" ? "Outdated members" : "Rolling out", "waiting"];
  return ["Full", "good"];
}

/** Why a pool is not well; empty if it is. @param {any} pool @returns {string} */
export function poolProblem(pool) {
  return pool.problem || pool.failure;
}

/** @param {any} node @returns {[string, string]} */
export function nodeState(node) {
  if (!node.ready) return ["Not ready", "bad"];
  return node.cordoned ? ["Cordoned", "waiting"] : ["Ready", "good"];
}

/** The numbers of a pool over time. @param {string} key */
export function poolSeries(key) {
  return store.samples.map((sample) => {
    const [ready, desired, members, updated, held, waiting, warm, cold, updatedReady] = sample.pools[key] ?? [0, 0, 0, 0, 0, 0, 0, 0, 0];
    return { at: sample.at, ready, desired, members, updated, held, waiting, warm, cold, updatedReady };
  });
}

/** Warm and cold claims, counted since the dashboard started: of one pool, or of all. @param {string} [key] */
export function launches(key) {
  let warm = 0;
  let cold = 0;
  for (const [pool, values] of Object.entries(store.samples.at(-1)?.pools ?? {})) {
    if (key && pool !== key) continue;
    warm += values[6];
    cold += values[7];
  }
  return { warm, cold, rate: warm + cold ? warm / (warm + cold) : null };
}
