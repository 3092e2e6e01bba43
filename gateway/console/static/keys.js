// Single keys as commands. Never while somebody writes, never while an input method composes; every one has a button too.

const CHOICES = /^[1-9]$/;
const TYPING = "input:not([type=checkbox]):not([type=radio]), textarea, select, [contenteditable]";

export function listen() {
  document.addEventListener("keydown", onKey);
}

function onKey(event) {
  // 229 is what browsers say of a key that an input method has taken.
  if (event.isComposing || event.keyCode === 229 || event.defaultPrevented) return;
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) return submit(event);
  if (event.key === "Escape") return leave(event);
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (document.querySelector("dialog[open]")) return;
  if (event.target.closest?.(TYPING)) return;
  if (document.documentElement.dataset.keys === "off") return;
  const command = commandOf(event);
  if (command) {
    event.preventDefault();
    command();
  }
}

function commandOf(event) {
  const key = event.key;
  if (key === "?") return () => document.getElementById("help")?.showModal();
  if (key === "/") return focusing("input[type=search]") ?? (() => location.assign("/console/items"));
  const review = document.querySelector(".review");
  if (review) return reviewCommand(key, review);
  if (document.querySelector(".cases")) return queueCommand(key, event);
  if (key === "c") return clicking("[data-key=c]");
  return null;
}

function reviewCommand(key, review) {
  if (CHOICES.test(key)) return choosing(key);
  switch (key) {
    case "j": return going(review.dataset.next);
    case "k": return going(review.dataset.previous);
    case "t": return going(review.dataset.timeline);
    case "c": return clicking("#claim");
    case "g": return advising();
    case "b": return clicking("#ban");
    case "a": return clicking("#whole-group");
    case "n": return noting();
    case "u": return clicking("#undo");
    case "z": return clicking(".stage:not([hidden]) .picture", isShown);
    default: return null;
  }
}

function queueCommand(key, event) {
  const cases = [...document.querySelectorAll(".case")];
  const here = cases.findIndex((each) => each.classList.contains("is-here"));
  switch (key) {
    case "j": return () => choose(cases[Math.min(here + 1, cases.length - 1)]);
    case "k": return () => choose(cases[Math.max(here - 1, 0)]);
    case "Enter": return event.target.closest("a, button, summary, label") ? null : () => cases[here]?.querySelector(".case-title").click();
    case "x": return () => cases[here]?.querySelector("input[type=checkbox]").click();
    case "c": return clicking("[data-key=c]");
    case "u": return clicking("#undo");
    default: return null;
  }
}

/** Make a case the one that keys act on, and show it beside the list. */
export function choose(row) {
  if (!row) return;
  document.querySelector(".case.is-here")?.classList.remove("is-here");
  row.classList.add("is-here");
  row.scrollIntoView({ block: "nearest" });
  row.querySelector(".case-title").focus({ preventScroll: true });
  document.dispatchEvent(new CustomEvent("case-chosen", { detail: row.dataset.case }));
}

function choosing(number) {
  const input = document.querySelector(`.choice input[data-number="${number}"]`);
  if (!input || input.disabled || input.closest("fieldset:disabled")) return null;
  return () => {
    input.checked = true;
    input.dispatchEvent(new Event("change", { bubbles: true }));
    input.focus();
  };
}

function advising() {
  return () => {
    const field = document.getElementById("guidance");
    if (field && !isShown(field)) choosing("2")?.();
    field?.focus();
  };
}

function noting() {
  const details = document.querySelector(".note-field");
  return details && (() => {
    details.open = true;
    details.querySelector("textarea").focus();
  });
}

function submit(event) {
  const form = event.target.closest?.("form") ?? document.getElementById("decide");
  const button = form && [...form.querySelectorAll("button:not([type=button]):not(.send-note)")].find((each) => isShown(each) && !each.disabled);
  if (!button || form.querySelector("fieldset:disabled")) return;
  event.preventDefault();
  button.click();
}

function leave(event) {
  if (document.querySelector("dialog[open]")) return;
  const field = event.target.closest?.(TYPING);
  if (field) {
    field.blur();
    return;
  }
  if (document.documentElement.dataset.keys === "off") return;
  const release = document.querySelector('#lease form[action$="/release"] button');
  if (release) release.focus();
  else document.querySelector("[data-escape]")?.click();
}

const isShown = (element) => element.checkVisibility?.() ?? element.offsetParent !== null;
const going = (address) => (address ? () => location.assign(address) : null);

function clicking(selector, accept = () => true) {
  const element = [...document.querySelectorAll(selector)].find(accept);
  return element && !element.disabled ? () => element.click() : null;
}

function focusing(selector) {
  const element = document.querySelector(selector);
  return element && (() => element.focus());
}
