// A link with data-dialog="id" opens that dialog instead of its page; a button with data-close closes its dialog.
document.addEventListener("click", (event) => {
  const link = event.target.closest("a[data-dialog]");
  if (link && !event.ctrlKey && !event.metaKey && !event.shiftKey) {
    event.preventDefault();
    document.getElementById(link.dataset.dialog).showModal();
  }
  event.target.closest("button[data-close]")?.closest("dialog").close();
});
