// Pictures: large on demand, patient while they are made, honest when they cannot be shown. Text read from them stays text.

export function watchPictures() {
  for (const image of document.querySelectorAll("img[data-artifact]")) {
    if (image.complete && image.naturalWidth) shown(image);
    image.addEventListener("load", () => shown(image));
    image.addEventListener("error", () => broken(image));
    if (image.complete && !image.naturalWidth && image.currentSrc) broken(image);
  }
  document.addEventListener("click", (event) => {
    const zoom = event.target.closest("[data-zoom]");
    const read = event.target.closest("[data-read]");
    const again = event.target.closest("[data-again]");
    if (zoom) enlarge(event, zoom);
    else if (read) showText(event, read);
    else if (again) retry(again);
    else if (event.target.id === "zoom" || event.target.closest("#zoom img")) document.getElementById("zoom").close();
  });
}

const shown = (image) => image.closest(".picture").classList.add("is-shown");

function broken(image) {
  const stage = image.closest(".stage");
  stage.querySelector(".picture").hidden = true;
  stage.querySelector(".broken").hidden = false;
}

function retry(button) {
  const stage = button.closest(".stage");
  const image = stage.querySelector("img");
  stage.querySelector(".broken").hidden = true;
  stage.querySelector(".picture").hidden = false;
  image.src = image.getAttribute("src");
}

function enlarge(event, link) {
  if (event.ctrlKey || event.metaKey) return;
  event.preventDefault();
  const dialog = document.getElementById("zoom");
  const image = dialog.querySelector("img");
  image.src = link.href;
  image.alt = link.querySelector("img").alt;
  image.hidden = false;
  dialog.showModal();
}

/** What a machine read from a stranger's file: set as text, so nothing in it is ever markup. */
async function showText(event, link) {
  if (event.ctrlKey || event.metaKey) return;
  event.preventDefault();
  const dialog = document.getElementById("reading");
  dialog.querySelector("h2").textContent = link.dataset.read;
  const place = dialog.querySelector("pre");
  place.textContent = "…";
  dialog.showModal();
  try {
    const answer = await fetch(link.href);
    const text = (await answer.text()).slice(0, 65536);
    place.textContent = text.trim() ? text : "–";
  } catch {
    place.textContent = "–";
  }
}
