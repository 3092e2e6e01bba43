// The console works without this file; with it, it is live, quick by keyboard, and keeps what was written.
import { listen } from "./keys.js";
import { goLive, refreshPieces } from "./live.js";
import { keepLease } from "./lease.js";
import { keepDraft } from "./drafts.js";
import { sendForms } from "./sending.js";
import { watchPictures } from "./pictures.js";
import { expandBlocks } from "./timeline.js";

document.documentElement.classList.add("has-script");
sendForms();
watchPictures();
expandBlocks();
keepDraft();
keepLease();
listen();
goLive();
localise();
setInterval(countDown, 1000);
countDown();

document.addEventListener("click", (event) => {
  const opener = event.target.closest("[data-open]");
  if (opener) document.getElementById(opener.dataset.open)?.showModal();
});

const filters = document.querySelector(".filters details");
if (filters && matchMedia("(max-width: 760px)").matches) filters.open = false;

/** Times of the server in the reader's own zone. */
export function localise(root = document) {
  for (const time of root.querySelectorAll("time[datetime]")) {
    const at = new Date(time.dateTime);
    if (!Number.isNaN(at.valueOf())) time.title = at.toLocaleString();
  }
}

/** What still runs: leases, and the time in which a decision can be taken back. */
function countDown() {
  for (const holder of document.querySelectorAll("[data-expires], [data-until]")) {
    const target = Number(holder.dataset.expires ?? holder.dataset.until);
    holder.dataset.skew ??= Date.now() - Number(holder.dataset.now);
    const left = Math.round((target - (Date.now() - Number(holder.dataset.skew))) / 1000);
    const shown = holder.querySelector(".countdown");
    if (shown) shown.textContent = left > 0 ? clock(left) : "0";
    if (left <= 0 && holder.dataset.until) holder.closest(".toast form")?.remove();
    if (left === 0 && holder.dataset.expires) refreshPieces("#lease");
  }
  for (const toast of document.querySelectorAll(".toast:not([data-leaving])")) {
    if (!toast.querySelector("form")) {
      toast.dataset.leaving = "";
      setTimeout(() => toast.remove(), 4000);
    }
  }
}

function clock(seconds) {
  return seconds >= 60 ? `${Math.floor(seconds / 60)}:${String(seconds % 60).padStart(2, "0")}` : `${seconds} s`;
}
