// Django's search fields (select2) have no name: here they get that of their label, before what is chosen in them.
{
  const nameThem = () => {
    for (const select of document.querySelectorAll("select.admin-autocomplete")) {
      const name = select.labels[0]?.textContent.trim() ?? select.getAttribute("aria-label");
      const box = select.parentElement.querySelector("[role=combobox]");
      if (!name || !box || box.ariaLabel) continue;
      const chosen = document.getElementById(box.getAttribute("aria-labelledby"));
      box.id = `${select.id}_search`;
      box.ariaLabel = chosen.ariaLabel = name;
      box.setAttribute("aria-labelledby", `${box.id} ${chosen.id}`);
    }
  };
  globalThis.django?.jQuery?.(nameThem); // after Django's own, which waits for the same moment and came first
  document.addEventListener("formset:added", nameThem);
}
