// A button with data-copy="selector" copies that element's text and says so. Loaded without `defer`, so that no button
// is there before it works.
document.addEventListener("click", async (event) => {
  const button = event.target.closest("button[data-copy]");
  if (!button) return;
  const source = document.querySelector(button.dataset.copy);
  try {
    await navigator.clipboard.writeText(source.textContent.trim());
    button.textContent = "Copied";
  } catch {
    // No clipboard on a page without https: select the text, so that the keyboard can copy it.
    getSelection().selectAllChildren(source);
    button.textContent = "Press Ctrl+C";
  }
});
