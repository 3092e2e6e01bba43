// Keep the case while somebody works on it; say at once when it is no longer theirs.
import { post } from "./sending.js";
import { refreshPieces, swap } from "./live.js";

const BEAT_MS = 60_000;
const LOOK_MS = 20_000;
const IDLE_MS = 12 * 60_000;

export function keepLease() {
  const review = document.querySelector(".review");
  const rail = document.getElementById("lease");
  if (!review || !rail) return;
  let touched = Date.now();
  for (const kind of ["keydown", "pointerdown"]) document.addEventListener(kind, () => (touched = Date.now()), { passive: true });
  const form = document.getElementById("decide");
  const first = rail.querySelector(".lease-state");
  if (form && first) Object.assign(form.dataset, { lease: first.dataset.state, content: first.dataset.content });
  rail.addEventListener("swapped", () => take(rail));
  setInterval(() => {
    if (state(rail) === "mine" && !document.hidden && Date.now() - touched < IDLE_MS) beat(review, rail);
  }, BEAT_MS);
  const look = async () => {
    if (document.hidden) return;
    const answer = await post(`/console/review/${review.dataset.case}/looking`, new URLSearchParams()).catch(() => null);
    const others = answer?.body?.others?.join(", ") ?? "";
    if (answer && others !== (rail.querySelector(".lease-state")?.dataset.lookers ?? "")) refreshPieces("#lease");
  };
  look();
  setInterval(look, LOOK_MS);
}

const state = (rail) => rail.querySelector(".lease-state")?.dataset.state;

async function beat(review, rail) {
  const answer = await post(`/console/review/${review.dataset.case}/heartbeat`, new URLSearchParams()).catch(() => null);
  if (answer?.body?.lease) swap(rail, answer.body.lease);
  if (answer?.body?.notice) notify(answer.body.notice, answer.body.locks);
}

/** The rail was fetched anew: does the form still fit to what it says? */
function take(rail) {
  const now = rail.querySelector(".lease-state");
  const form = document.getElementById("decide");
  if (!now || !form) return;
  const before = form.dataset.lease;
  form.dataset.lease = now.dataset.state;
  if (form.dataset.content === now.dataset.content && ["mine", "open"].includes(now.dataset.state) && now.dataset.may === "yes") {
    form.elements.version.value = now.dataset.version;
    lock(false);
    if (before === "other") document.getElementById("notice").replaceChildren();
  }
  if (["other", "over"].includes(now.dataset.state) && before !== now.dataset.state) explain(rail);
}

/** Ask the page itself why it may no longer be sent, and show that above the form. */
async function explain(rail) {
  lock(true);
  try {
    const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const notice = page.getElementById("notice");
    if (notice) notify(notice.innerHTML, true);
  } catch {
    rail.dataset.stale = "";
  }
}

export function notify(text, locks) {
  const place = document.getElementById("notice");
  if (!place) return;
  place.innerHTML = text;
  if (locks) lock(true);
}

export function lock(is) {
  const fields = document.querySelector("#decide > fieldset");
  if (fields && (is || document.querySelector("#lease [data-may=yes]"))) fields.disabled = is;
}
