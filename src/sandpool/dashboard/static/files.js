// The files of a sandbox: walk through directories, look into files, download and upload.

// @ts-check

import { open, path, read, settings } from "./api.js";
import { fill, h, icon } from "./dom.js";
import { size } from "./format.js";
import { attempt, button, empty, failed } from "./ui.js";

/** @param {string} key */
export function files(key) {
  const element = h("div", { class: "card files", keep: `files:${key}` });
  /** @type {any} */
  let directory;

  const api = (/** @type {string} */ what, /** @type {string} */ where) => path("sandboxes", key, `/${what}?path=${encodeURIComponent(where)}`);

  /** @param {string} where */
  async function enter(where) {
    try {
      directory = await read(api("directory", where));
      drawDirectory();
    } catch (error) {
      fill(element, breadcrumbs(directory?.path ?? "/"), failed(error), h("p", {}, button("Try again", () => enter(where))));
    }
  }

  function drawDirectory() {
    const entries = [...directory.entries].sort((a, b) => Number(b.type === "directory") - Number(a.type === "directory") || a.name.localeCompare(b.name));
    fill(
      element,
      h("div", { class: "card-header", key: "header" }, breadcrumbs(directory.path), h("div", { class: "actions" }, !settings.readOnly && uploadButton(), button("Refresh", () => enter(directory.path)))),
      entries.length
        ? h("ul", { class: "entries", key: "entries" }, entries.map(entryItem))
        : empty("An empty directory", settings.readOnly ? "There is nothing in it." : "Upload a file, or write one from code."),
      directory.truncated && h("p", { class: "quiet small", key: "more" }, "There are more entries; the terminal shows all of them."),
    );
  }

  /** @param {any} entry */
  function entryItem(entry) {
    const where = join(directory.path, entry.name);
    const isDirectory = entry.type === "directory";
    return h(
      "li",
      { key: entry.name },
      h(
        "button",
        { type: "button", class: "entry", onclick: () => (isDirectory ? enter(where) : show(where, entry)) },
        icon(isDirectory ? "folder" : entry.isLink ? "link" : "file"),
        h("span", { class: "entry-name" }, entry.name),
        h("span", { class: "quiet tabular" }, isDirectory ? "" : size(entry.size)),
        h("span", { class: "quiet tabular optional" }, entry.modified ? new Date(entry.modified * 1000).toLocaleString([], { dateStyle: "medium", timeStyle: "short" }) : ""),
        h("code", { class: "quiet optional" }, entry.mode),
      ),
    );
  }

  /** @param {string} where @param {any} entry */
  async function show(where, entry) {
    /** @type {any} */
    let preview;
    try {
      // Devices and pipes have no end, or none soon.
      preview = entry.type === "file" ? await read(api("preview", where)) : { text: null, more: false, size: 0 };
    } catch (error) {
      fill(element, h("div", { class: "card-header", key: "header" }, breadcrumbs(where)), failed(error));
      return;
    }
    fill(
      element,
      h("div", { class: "card-header", key: "header" }, breadcrumbs(where), h("div", { class: "actions" }, entry.type === "file" && button("Download", () => download(where), { symbol: "download" }))),
      preview.text === null
        ? entry.type === "file" ? empty("Not a text file", `${size(entry.size)}. Download it to look into it.`) : empty("Not a regular file", "It is a device, a socket or a pipe, or a link that leads nowhere.")
        : h("pre", { class: "preview", key: `preview:${where}`, tabindex: "0" }, preview.text || " "),
      preview.more && h("p", { class: "quiet small" }, "This is the beginning. Download the file for all of it."),
    );
  }

  /** @param {string} where */
  function download(where) {
    return attempt(async () => {
      const content = await (await open(api("download", where))).blob();
      const url = URL.createObjectURL(content);
      const anchor = h("a", { href: url, download: where.slice(where.lastIndexOf("/") + 1) });
      anchor.click();
      setTimeout(() => URL.revokeObjectURL(url), 10_000);
    });
  }

  function uploadButton() {
    const chooser = h("input", { type: "file", multiple: true, class: "visually-hidden", "aria-label": "Files to upload", tabindex: "-1" });
    chooser.addEventListener("change", () => upload([...chooser.files]));
    return h("span", { keep: "upload" }, chooser, button("Upload", () => chooser.click(), { symbol: "upload" }));
  }

  /** @param {File[]} chosen */
  async function upload(chosen) {
    for (const file of chosen) {
      await attempt(() => open(api("file", join(directory.path, file.name)), { method: "PUT", body: file }), `Uploaded ${file.name}`);
    }
    enter(directory.path);
  }

  /** @param {string} where */
  function breadcrumbs(where) {
    const parts = where.split("/").filter(Boolean);
    return h(
      "nav",
      { class: "breadcrumbs", "aria-label": "Path" },
      button("/", () => enter("/"), { kind: "plain" }),
      parts.map((part, index) => [index > 0 && h("span", { class: "quiet", "aria-hidden": "true" }, "/"), button(part, () => enter(`/${parts.slice(0, index + 1).join("/")}`), { kind: "plain" })]),
    );
  }

  element.addEventListener("dragover", (/** @type {DragEvent} */ event) => event.preventDefault());
  element.addEventListener("drop", (/** @type {DragEvent} */ event) => {
    event.preventDefault();
    if (!settings.readOnly && event.dataTransfer) upload([...event.dataTransfer.files]);
  });
  fill(element, h("p", { class: "quiet loading" }, "Loading …"));
  enter(".");
  return { element, close() {} };
}

/** @param {string} directory @param {string} name */
function join(directory, name) {
  return `${directory === "/" ? "" : directory}/${name}`;
}
