// Small things of every page: times in the reader's zone, copying, dialogs, Ctrl+K, the side sheet, charts.

const year = new Date().getFullYear();
const shown = (at) => new Intl.DateTimeFormat("en-GB", {
  day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23",
  ...(at.getFullYear() === year ? {} : { year: "numeric" }),
}).format(at);

// The server writes moments in UTC; the title keeps them.
const localise = (root) => {
  for (const time of root.querySelectorAll("time[datetime]")) time.textContent = shown(new Date(time.dateTime));
};
localise(document);
document.addEventListener("htmx:afterSwap", (event) => localise(event.detail.target));

const say = (button, text) => {
  button.dataset.name ??= button.textContent;
  button.textContent = text;
  setTimeout(() => { button.textContent = button.dataset.name; }, 2000);
};

document.addEventListener("click", async (event) => {
  const { target } = event;
  const copy = target.closest("button[data-copy-text]");
  if (copy) {
    try {
      await navigator.clipboard.writeText(copy.dataset.copyText);
      say(copy, "Copied");
    } catch {
      prompt("Copy with Ctrl+C", copy.dataset.copyText); // no clipboard on a page without https
    }
    return;
  }
  // A link with data-dialog="id" opens that dialog instead of its page; data-close closes the dialog around it.
  const plain = !event.ctrlKey && !event.metaKey && !event.shiftKey;
  const opener = target.closest("a[data-dialog]");
  const dialog = opener && document.getElementById(opener.dataset.dialog);
  if (dialog && plain) {
    event.preventDefault();
    dialog.showModal();
  }
  target.closest("[data-close]")?.closest("dialog").close();
  const row = target.closest("a[data-sheet]");
  if (row && plain && globalThis.htmx) {
    event.preventDefault();
    openSheet(row.href);
  }
  if (target.matches?.("dialog.sheet, dialog.find")) target.close(); // its backdrop
});

// A row's page without its shell, in a sheet at the right; closed, the focus goes back to the row.
const openSheet = async (address) => {
  const sheet = document.getElementById("sheet");
  sheet.onclose = () => sheet.querySelector("#sheet-body").replaceChildren(); // what polls in it ends with it
  sheet.querySelector("[data-sheet-page]").href = address;
  await htmx.ajax("GET", address, { target: "#sheet-body", swap: "innerHTML", select: "#main > *" });
  if (!sheet.open) sheet.showModal();
};

document.addEventListener("keydown", (event) => {
  const find = document.getElementById("find");
  if (find && (event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k" && !event.shiftKey && !event.altKey) {
    event.preventDefault();
    if (!find.open) find.showModal();
    find.querySelector("input[type=search]").select();
    return;
  }
  if (find?.open && (event.key === "ArrowDown" || event.key === "ArrowUp")) {
    const stops = [find.querySelector("input[type=search]"), ...find.querySelectorAll(".found a")];
    const next = stops.indexOf(document.activeElement) + (event.key === "ArrowDown" ? 1 : -1);
    event.preventDefault();
    stops[Math.min(Math.max(next, 0), stops.length - 1)].focus();
  }
});
// Enter goes to the first thing that was found.
document.querySelector("#find form")?.addEventListener("submit", (event) => {
  const first = document.querySelector("#found a");
  if (!first) return;
  event.preventDefault();
  first.click();
});

// Parts that poll stop while nobody sees them: hx-trigger="every 3s [seen()]" would need eval, so the request is dropped.
document.addEventListener("htmx:beforeRequest", (event) => {
  if (document.hidden && event.detail.requestConfig.triggeringEvent === undefined) event.preventDefault();
});

// A chart's bars by pointer, finger and keyboard: one stop for Tab, arrows walk, Enter follows the bar's link.
class Chart extends HTMLElement {
  connectedCallback() {
    this.bars = [...this.querySelectorAll(".bar")];
    if (!this.bars.length) return;
    this.tip = Object.assign(document.createElement("div"), { className: "tip", hidden: true });
    this.tip.setAttribute("role", "status");
    this.append(this.tip);
    this.bars.forEach((bar, at) => bar.setAttribute("tabindex", at === this.bars.length - 1 ? "0" : "-1"));
    this.addEventListener("pointermove", (event) => this.show(event.target.closest(".bar")));
    this.addEventListener("pointerdown", (event) => this.show(event.target.closest(".bar")));
    this.addEventListener("pointerleave", () => this.show(null));
    this.addEventListener("focusin", (event) => this.show(event.target.closest(".bar")));
    this.addEventListener("focusout", () => this.show(null));
    this.addEventListener("keydown", (event) => this.walk(event));
  }

  show(bar) {
    for (const one of this.bars) one.classList.toggle("at", one === bar);
    this.tip.hidden = !bar;
    if (!bar) return;
    this.tip.textContent = bar.getAttribute("aria-label");
    const box = bar.getBoundingClientRect();
    const own = this.getBoundingClientRect();
    const left = box.left - own.left + box.width / 2 - this.tip.offsetWidth / 2;
    this.tip.style.left = `${Math.min(Math.max(left, 0), own.width - this.tip.offsetWidth)}px`;
    this.tip.style.top = `${-this.tip.offsetHeight - 4}px`;
  }

  walk(event) {
    const at = this.bars.indexOf(document.activeElement);
    const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: this.bars.length - 1 }[event.key];
    if (at < 0 || to === undefined || !this.bars[to]) return;
    event.preventDefault();
    this.bars[at].setAttribute("tabindex", "-1");
    this.bars[to].setAttribute("tabindex", "0");
    this.bars[to].focus();
  }
}
customElements.define("sluice-chart", Chart);
