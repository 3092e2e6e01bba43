// One event stream per browser, however many tabs are open: the tab that holds the lock listens and tells the others.
// What changes is fetched again as pieces of a page: counts, rows, rails. Never a form.

const CHANNEL = "sluicegate-events";
const LOCK = "sluicegate-stream";
const POLL_MS = 10_000;
const SETTLE_MS = 250;
const TYPES = [
  "opened", "claimed", "released", "lease_expired", "assigned", "due_soon", "resolved", "undone", "applied", "apply_failed",
  "withdrawn", "expired", "reopened", "asked", "informed", "noted",
].map((name) => `escalation.${name}`).concat(
  ["queued", "rejected", "ready", "running", "halted", "awaiting_human", "succeeded", "failed", "cancelled", "expired"].map((name) => `item.${name}`),
);

const channel = "BroadcastChannel" in window ? new BroadcastChannel(CHANNEL) : null;
let due = 0;

export function goLive() {
  channel?.addEventListener("message", ({ data }) => {
    if (data.kind === "state") show(data.state);
    else if (data.kind === "event") changed();
    else if (data.kind === "who" && leading) channel.postMessage({ kind: "state", state: leading });
  });
  document.addEventListener("case-chosen", ({ detail }) => preview(detail));
  document.addEventListener("visibilitychange", () => document.hidden || changed());
  if (!navigator.locks || !window.EventSource) {
    poll();
    return;
  }
  channel?.postMessage({ kind: "who" });
  navigator.locks.request(LOCK, () => new Promise(lead)).catch(poll);
}

let leading = null;

/** This tab listens for all of them, for as long as it lives. */
function lead() {
  let failures = 0;
  let source = null;
  let last = null;
  const tell = (state) => {
    leading = state;
    show(state);
    channel?.postMessage({ kind: "state", state });
  };
  const open = () => {
    const query = last === null ? "" : `?after=${last}`;
    source = new EventSource(`/v1/events${query}`);
    source.onopen = () => {
      failures = 0;
      tell("live");
      announce();
    };
    source.onerror = () => {
      tell("lost");
      if (source.readyState !== EventSource.CLOSED) return;
      failures += 1;
      setTimeout(open, Math.min(30_000, 1000 * 2 ** failures));
    };
    for (const type of TYPES) source.addEventListener(type, heard);
    source.onmessage = heard;
    source.addEventListener("stream.reset", announce);
  };
  const heard = (event) => {
    if (event.lastEventId) last = event.lastEventId;
    announce();
  };
  const announce = () => {
    channel?.postMessage({ kind: "event" });
    changed();
  };
  open();
  window.addEventListener("pagehide", () => source.close());
}

function poll() {
  show("poll");
  setInterval(() => document.hidden || changed(), POLL_MS);
}

function show(state) {
  const shown = document.getElementById("link-state");
  if (!shown || shown.dataset.state === state) return;
  shown.dataset.state = state;
  shown.lastElementChild.textContent = shown.dataset[`words${state[0].toUpperCase()}${state.slice(1)}`] ?? "";
}

/** Something happened somewhere: fetch the pieces again, once things have settled. */
function changed() {
  clearTimeout(due);
  due = setTimeout(() => document.hidden || refreshPieces(), SETTLE_MS + Math.random() * 150);
}

export async function refreshPieces(only = "[data-live]") {
  for (const element of document.querySelectorAll(only)) {
    const text = await piece(element.dataset.live);
    if (text !== null) swap(element, text);
  }
}

async function piece(address) {
  try {
    const answer = await fetch(address, { headers: { Accept: "text/html" } });
    reached(true);
    return answer.ok ? await answer.text() : null;
  } catch {
    reached(false);
    return null;
  }
}

export function reached(is) {
  const banner = document.getElementById("unreachable");
  if (banner) banner.hidden = is;
}

/** Put a piece in its place: what was focused or selected in it is so again. */
export function swap(element, text) {
  if (element.innerHTML === text || element.contains(document.activeElement?.closest("input:not([type=checkbox]), textarea"))) return;
  const focused = element.contains(document.activeElement) ? pathOf(document.activeElement) : null;
  const here = element.querySelector(".is-here")?.id;
  const picked = new Set([...element.querySelectorAll("input[type=checkbox]:checked")].map((each) => each.value));
  element.innerHTML = text;
  if (here && document.getElementById(here)) {
    element.querySelector(".is-here")?.classList.remove("is-here");
    document.getElementById(here).classList.add("is-here");
  }
  for (const box of element.querySelectorAll("input[type=checkbox]")) box.checked = picked.has(box.value);
  if (focused) (element.querySelector(focused) ?? element.querySelector("a, button") ?? fallback(element)).focus({ preventScroll: true });
  element.dispatchEvent(new CustomEvent("swapped", { bubbles: true }));
}

function fallback(element) {
  element.tabIndex = -1;
  return element;
}

function pathOf(element) {
  if (element.id) return `#${CSS.escape(element.id)}`;
  const row = element.closest("[data-case]");
  const own = element.matches("a[href]") ? `a[href="${CSS.escape(element.getAttribute("href"))}"]` : element.localName;
  return row ? `[data-case="${row.dataset.case}"] ${own}` : own;
}

let wanted = "";
async function preview(id) {
  const place = document.getElementById("preview");
  if (!place || !place.checkVisibility()) return;
  wanted = id;
  const text = await piece(`/console/pieces/preview/${id}`);
  if (text !== null && wanted === id) place.innerHTML = text;
}
