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
    handle.setPointerCapture(event.pointerId); // kept as long as the row stays where it is: only a line moves
    const others = [...row.parentElement.children].filter((one) => one !== row);
    const first = row.nextElementSibling;
    let next = first;
    row.classList.add("dragged");
    const move = ({ clientY }) => {
      next = others.find((one) => {
        const box = one.getBoundingClientRect();
        return clientY < box.top + box.height / 2;
      }) ?? null;
      for (const one of others) one.classList.toggle("drop", one === next && next !== first);
      others.at(-1).classList.toggle("drop-after", next === null && first !== null);
    };
    const end = ({ type }) => {
      handle.removeEventListener("pointermove", move);
      for (const name of ["pointerup", "pointercancel"]) handle.removeEventListener(name, end);
      for (const one of row.parentElement.children) one.classList.remove("dragged", "drop", "drop-after");
      if (type === "pointercancel" || next === first) return;
      this.form.action = row.dataset.place;
      this.form.elements.before.value = next?.dataset.rule ?? "";
      this.form.submit();
    };
    handle.addEventListener("pointermove", move);
    for (const name of ["pointerup", "pointercancel"]) handle.addEventListener(name, end);
  }
}
customElements.define("sluice-order", Order);
