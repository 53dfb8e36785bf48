// Requests to the dashboard. Each carries the secret of the session that only this page can read.

// @ts-check

const meta = /** @type {HTMLMetaElement} */ (document.querySelector('meta[name="sandpool"]'));
/** @type {{session: string, readOnly: boolean, title: string, namespace: string | null, version: string, loopback: boolean, metrics: boolean}} */
export const settings = JSON.parse(meta.content);

export class Failure extends Error {
  /** @param {string} message @param {string} advice @param {number} status */
  constructor(message, advice, status) {
    super(message);
    this.advice = advice;
    this.status = status;
  }
}

/** @param {string} path @param {RequestInit} [options] */
export async function open(path, options = {}) {
  let response;
  try {
    response = await fetch(path, {
      ...options,
      credentials: "same-origin",
      headers: { ...options.headers, "X-Sandpool-Session": settings.session ?? "" },
    });
  } catch (error) {
    if (/** @type {Error} */ (error).name === "AbortError") throw error;
    throw new Failure("the dashboard does not answer", "Is `sandpool up` or `sandpool dashboard` still running?", 0);
  }
  if (response.status === 401 && settings.session) {
    location.assign("/login");
  }
  if (!response.ok) {
    const told = await response.json().catch(() => ({}));
    throw new Failure(told.error ?? `the dashboard answered ${response.status}`, told.advice ?? "", response.status);
  }
  return response;
}

/** @param {string} path */
export async function read(path) {
  return (await open(path)).json();
}

/** @param {string} method @param {string} path @param {any} [content] */
export async function send(method, path, content = {}) {
  const response = await open(path, {
    method,
    body: JSON.stringify(content),
    headers: { "Content-Type": "application/json" },
  });
  return response.json();
}

/** The path of an object in the API of the dashboard. @param {string} kind @param {string} key @param {string} [rest] */
export function path(kind, key, rest = "") {
  return `/api/${kind}/${key.split("/").map(encodeURIComponent).join("/")}${rest}`;
}
