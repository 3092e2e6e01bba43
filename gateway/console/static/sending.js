// Forms that stay on the page while they are sent: a lost connection is waited out, a lost session is logged in again.
import { forgetDraft } from "./drafts.js";
import { lock, notify } from "./lease.js";
import { reached, swap } from "./live.js";

const SLOW_MS = 3000;
const AGAIN_MS = [1000, 2000, 4000, 8000];

export function sendForms() {
  document.addEventListener("submit", (event) => {
    const form = event.target;
    const action = event.submitter?.getAttribute("formaction") ?? form.getAttribute("action") ?? "";
    if (form.method !== "post" || !action.startsWith("/console/review/")) return;
    event.preventDefault();
    send(form, event.submitter, action);
  });
}

async function send(form, button, action) {
  const fields = new URLSearchParams(new FormData(form, button));
  if (button) {
    button.disabled = true;
    button.classList.add("is-busy");
  }
  const slow = setTimeout(() => {
    const place = document.getElementById("draft-state");
    if (place) place.textContent = form.dataset.slow ?? "";
  }, SLOW_MS);
  try {
    const answer = await persist(action, fields);
    take(form, action, answer);
  } finally {
    clearTimeout(slow);
    if (button) {
      button.disabled = false;
      button.classList.remove("is-busy");
    }
  }
}

/** The same request with the same key, until it is answered. */
async function persist(action, fields) {
  for (let turn = 0; ; turn += 1) {
    try {
      const answer = await post(action, fields);
      reached(true);
      if (answer.status === 401) {
        await logIn();
        fields.set("csrf", token());
        continue;
      }
      if (answer.status < 500) return answer;
    } catch {
      reached(false);
    }
    await new Promise((wake) => setTimeout(wake, AGAIN_MS[Math.min(turn, AGAIN_MS.length - 1)]));
  }
}

export async function post(action, fields) {
  const answer = await fetch(action, {
    method: "POST",
    body: fields,
    headers: { Accept: "application/json", "X-CSRF-Token": token() },
  });
  const type = answer.headers.get("content-type") ?? "";
  return { status: answer.status, body: type.includes("json") ? await answer.json() : null };
}

const token = () => document.querySelector("meta[name=csrf]").content;

function take(form, action, answer) {
  const { status, body } = answer;
  const rail = document.getElementById("lease");
  if (status < 300 && body) {
    if (action.endsWith("/decide")) forgetDraft(form);
    if (action.endsWith("/note")) {
      form.elements.note.value = "";
      form.elements.note.dispatchEvent(new Event("input", { bubbles: true }));
      location.reload();
      return;
    }
    if (body.lease && rail && !action.endsWith("/undo") && location.pathname === new URL(body.location, location.href).pathname) {
      swap(rail, body.lease);
      document.getElementById("notice")?.replaceChildren();
      lock(false);
      if (document.activeElement === document.body) document.getElementById("main").focus({ preventScroll: true });
    } else if (body.location) {
      location.assign(body.location);
    }
    return;
  }
  if (body?.lease && rail) swap(rail, body.lease);
  if (body?.notice) notify(body.notice, body.locks);
  else notify(plain(body?.detail ?? `HTTP ${status}`), status === 403);
  document.getElementById("notice-text")?.focus();
}

function plain(text) {
  const box = document.createElement("div");
  box.className = "notice n-bad";
  box.id = "notice-text";
  box.tabIndex = -1;
  box.append(text);
  return box.outerHTML;
}

/** The session is over: log in over the page, so that nothing that was written is lost. */
function logIn() {
  const dialog = document.getElementById("login");
  return new Promise((done) => {
    const form = dialog.querySelector("form");
    form.onsubmit = async (event) => {
      event.preventDefault();
      const answer = await post("/console/login", new URLSearchParams(new FormData(form)));
      form.querySelector("[role=alert]").textContent = answer.status < 300 ? "" : (answer.body?.detail ?? "");
      if (answer.status >= 300) return;
      document.querySelector("meta[name=csrf]").content = answer.body.csrf;
      for (const field of document.querySelectorAll("input[name=csrf]")) field.value = answer.body.csrf;
      form.reset();
      dialog.close();
      done();
    };
    dialog.showModal();
  });
}
