// Numbers, times and sizes, as people read them.

// @ts-check

/** The age of something since an RFC 3339 time. @param {string} created */
export function age(created) {
  if (!created) return "";
  return duration((Date.now() - Date.parse(created)) / 1000);
}

/** @param {number} seconds */
export function duration(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 120) return `${whole}s`;
  if (whole < 7200) return `${Math.floor(whole / 60)}m`;
  if (whole < 172800) return `${Math.floor(whole / 3600)}h`;
  return `${Math.floor(whole / 86400)}d`;
}

/** @param {number | null | undefined} ms */
export function milliseconds(ms) {
  if (ms === null || ms === undefined) return "–";
  if (ms < 10) return `${ms.toFixed(1)} ms`;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  return `${(ms / 1000).toFixed(ms < 10000 ? 1 : 0)} s`;
}

/** @param {number | null | undefined} bytes */
export function size(bytes) {
  if (bytes === null || bytes === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (bytes >= 1024 && unit < units.length - 1) {
    bytes /= 1024;
    unit += 1;
  }
  return `${bytes >= 100 || unit === 0 ? Math.round(bytes) : bytes.toFixed(1)} ${units[unit]}`;
}

/** @param {number | null | undefined} cores */
export function cpu(cores) {
  if (cores === null || cores === undefined) return "–";
  return cores < 0.005 ? "0" : cores.toFixed(2);
}

/** @param {number | null} share */
export function percent(share) {
  if (share === null || Number.isNaN(share)) return "–";
  return share > 0.99 && share < 1 ? `${(share * 100).toFixed(1)} %` : `${Math.round(share * 100)} %`;
}

/** A count with its noun. @param {number} count @param {string} noun */
export function counted(count, noun) {
  return `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : noun.endsWith("x") ? "es" : "s"}`;
}

/** The time of day. @param {number} seconds since the epoch */
export function clock(seconds) {
  return new Date(seconds * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit" });
}

/** A day and the time of day. @param {number} seconds since the epoch */
export function moment(seconds) {
  const at = new Date(seconds * 1000);
  return `${at.toLocaleDateString([], { month: "short", day: "numeric" })}, ${clock(seconds)}`;
}

/** The median and other quantiles of numbers. @param {number[]} values @param {number} share */
export function quantile(values, share) {
  if (!values.length) return null;
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))];
}
