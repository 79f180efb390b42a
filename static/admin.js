// Django's search fields for rows (select2) are named by what is chosen in them alone: here by their label, too.
{
  const nameThem = () => {
    for (const select of document.querySelectorAll("select.admin-autocomplete")) {
      const [label] = select.labels;
      const box = select.parentElement.querySelector(".select2 [role=combobox]");
      if (!label || !box || label.id) continue;
      label.id = `${select.id}_label`;
      box.setAttribute("aria-labelledby", `${label.id} ${box.getAttribute("aria-labelledby")}`);
    }
  };
  addEventListener("load", nameThem);
  document.addEventListener("formset:added", nameThem);
}
