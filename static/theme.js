// The theme that was picked here, before the first paint; without a choice the system's.
{
  const apply = (choice) => {
    if (choice) document.documentElement.dataset.theme = choice;
    else delete document.documentElement.dataset.theme;
    for (const button of document.querySelectorAll("[data-theme-choice]")) {
      button.setAttribute("aria-pressed", String(button.dataset.themeChoice === choice));
    }
  };
  const kept = () => localStorage.getItem("sluice.theme") ?? "";
  apply(kept());
  document.addEventListener("DOMContentLoaded", () => apply(kept()));
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-theme-choice]");
    if (!button) return;
    localStorage.setItem("sluice.theme", button.dataset.themeChoice);
    apply(button.dataset.themeChoice);
  });
}
