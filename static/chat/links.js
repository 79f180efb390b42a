// Links in an answer are a model's words: where one leads is shown before it is followed.

/** Ask in `dialog` before a link inside `container` is followed. */
export function askBeforeLeaving(container, dialog) {
  const place = dialog.querySelector("[data-address]");
  container.addEventListener("click", (event) => {
    const link = event.target.closest(".prose a[href]");
    if (!link) return;
    event.preventDefault();
    place.textContent = link.href;
    dialog.returnValue = "";
    dialog.showModal();
  });
  container.addEventListener("auxclick", (event) => {
    if (event.target.closest(".prose a[href]")) event.preventDefault();
  });
  dialog.addEventListener("close", () => {
    if (dialog.returnValue === "open") open(place.textContent, "_blank", "noopener,noreferrer");
  });
}
