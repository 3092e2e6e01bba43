// Show the calls of a block in its place; without a script the same link leads to a page of its own.
export function expandBlocks() {
  document.addEventListener("click", async (event) => {
    const link = event.target.closest("[data-expand]");
    if (!link || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    const address = new URL(link.href);
    address.searchParams.set("piece", "");
    const answer = await fetch(address, { headers: { Accept: "text/html" } }).catch(() => null);
    if (!answer?.ok) {
      location.assign(link.href);
      return;
    }
    const holder = document.createElement("div");
    holder.innerHTML = await answer.text();
    const rows = holder.firstElementChild;
    const before = link.closest(".line-rows");
    (link.closest(".line") ?? before).append(rows);
    link.remove();
    rows.focus({ preventScroll: true });
  });
}
