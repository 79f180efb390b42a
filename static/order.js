// Rows of an ordered list that are dragged by a handle; a drop posts what the row now stands before. The buttons up and
// down of each row do the same by keyboard and without a script.

class Order extends HTMLElement {
  connectedCallback() {
    this.form = this.querySelector(":scope > form");
    for (const row of this.querySelectorAll("[data-place]")) {
      const handle = Object.assign(document.createElement("span"), { className: "handle", textContent: "⠿", title: "Drag to order" });
      handle.setAttribute("aria-hidden", "true"); // the buttons are what others use
      handle.addEventListener("pointerdown", (event) => this.take(event, row, handle));
      row.prepend(handle);
    }
  }

  take(event, row, handle) {
    if (event.button) return;
    event.preventDefault();
    const first = row.nextElementSibling;
    handle.setPointerCapture(event.pointerId);
    row.classList.add("dragged");
    const move = ({ clientY }) => {
      const others = [...row.parentElement.children].filter((one) => one !== row);
      const next = others.find((one) => {
        const box = one.getBoundingClientRect();
        return clientY < box.top + box.height / 2;
      });
      if (next !== row.nextElementSibling) row.parentElement.insertBefore(row, next ?? null);
    };
    const end = ({ type }) => {
      handle.removeEventListener("pointermove", move);
      for (const name of ["pointerup", "pointercancel"]) handle.removeEventListener(name, end);
      row.classList.remove("dragged");
      if (type === "pointercancel") row.parentElement.insertBefore(row, first);
      if (row.nextElementSibling === first) return;
      this.form.action = row.dataset.place;
      this.form.elements.before.value = row.nextElementSibling?.dataset.rule ?? "";
      this.form.submit();
    };
    handle.addEventListener("pointermove", move);
    for (const name of ["pointerup", "pointercancel"]) handle.addEventListener(name, end);
  }
}
customElements.define("sluice-order", Order);
