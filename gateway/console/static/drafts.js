// What is written on a case stays in this browser until it is sent, through reloads, lost leases and lost connections.

const KEPT_MS = 14 * 24 * 3600 * 1000;
const SKIP = new Set(["csrf", "version", "key"]);

export function keepDraft() {
  forgetOld();
  const form = document.querySelector("form[data-draft]");
  if (!form) return;
  const key = `draft:${form.dataset.draft}`;
  fill(form, read(key));
  form.addEventListener("input", () => {
    write(key, collect(form));
    say(form, form.dataset.kept ?? "");
  });
  form.addEventListener("change", () => write(key, collect(form)));
  window.addEventListener("storage", (event) => {
    if (event.key !== key || !event.newValue || form.contains(document.activeElement?.closest("textarea"))) return;
    fill(form, JSON.parse(event.newValue));
    say(form, form.dataset.shared ?? "");
  });
}

export function forgetDraft(form) {
  if (form?.dataset.draft) localStorage.removeItem(`draft:${form.dataset.draft}`);
}

function collect(form) {
  const fields = {};
  for (const [name, value] of new FormData(form)) if (!SKIP.has(name)) (fields[name] ??= []).push(value);
  return { at: Date.now(), fields };
}

function fill(form, draft) {
  if (!draft) return;
  for (const element of form.elements) {
    if (!element.name || SKIP.has(element.name) || element.type === "submit") continue;
    const values = draft.fields[element.name];
    if (element.type === "checkbox" || element.type === "radio") {
      if (element.type === "checkbox" || values) element.checked = values?.includes(element.value) ?? false;
    } else if (values) {
      element.value = values[0];
    }
  }
  if (draft.fields.note?.[0]) form.querySelector(".note-field").open = true;
  form.querySelector(".others:has(input:checked)")?.setAttribute("open", "");
}

function say(form, text) {
  const place = document.getElementById("draft-state");
  if (place && text && place.textContent !== text) place.textContent = text;
}

function read(key) {
  try {
    return JSON.parse(localStorage.getItem(key));
  } catch {
    return null;
  }
}

function write(key, draft) {
  try {
    localStorage.setItem(key, JSON.stringify(draft));
  } catch {
    // A full or forbidden store: the form itself still holds what was written.
  }
}

function forgetOld() {
  for (const key of Object.keys(localStorage)) {
    if (key.startsWith("draft:") && Date.now() - (read(key)?.at ?? 0) > KEPT_MS) localStorage.removeItem(key);
  }
}
