// When the page reads something again, so that it costs the gateway little.

/** Longest time between two readings, in milliseconds. */
const MAX_INTERVAL = 120_000;

/** Returns the time until a request that took `time` may be repeated: the gateway works for it for less than 1 % of the time. */
export const pauseAfter = (time, least, most = MAX_INTERVAL) => Math.min(Math.max(time * 150, least), most);

/** Resolves when the page is visible. */
export function whenVisible() {
  if (!document.hidden) return Promise.resolve();
  return new Promise((resolve) => document.addEventListener("visibilitychange", resolve, { once: true }));
}
