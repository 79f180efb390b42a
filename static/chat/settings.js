// The parameters panel and what is picked: project, model. Kept in this browser, and with each conversation.

import { el } from "./dom.js";
import { count, size } from "./numbers.js";

const KEY = "sluice.chat.settings.";
const TEMPERATURE = 1; // where the slider stands while the model’s own recommendation is used
const $ = (id) => document.getElementById(id);

/** What the next request is made with; `temperature` is null for what the model recommends. Tells "change". */
export class Settings extends EventTarget {
  #key;
  #models;

  constructor(data) {
    super();
    this.#key = `${KEY}${data.user}.${data.tenant}`;
    this.#models = data.models;
    let kept = {};
    try {
      kept = JSON.parse(localStorage.getItem(this.#key)) ?? {};
    } catch {
      // Written by something else: as if nothing was.
    }
    $("project").replaceChildren(...data.projects.map(({ id, name }) => el("option", { value: id }, name)));
    if (data.projects.some(({ id }) => id === kept.project)) $("project").value = kept.project;
    document.querySelector(".project").hidden = data.projects.length < 2;
    this.model = kept.model;
    this.#offer();
    this.#fill(kept);
    this.#listen();
    this.#show();
  }

  /** What a conversation keeps of it. */
  get kept() {
    const { model, system, temperature, maxOutput } = this;
    return { model, system, temperature, maxOutput };
  }

  /** Take what a conversation kept. */
  take(kept) {
    if (this.#offered().some(({ id }) => id === kept.model)) this.model = kept.model;
    this.#fill(kept);
    this.#show();
    this.dispatchEvent(new Event("change"));
  }

  /** The card of a model that may be picked. */
  card(id = this.model) {
    return this.#models.find((model) => model.id === id);
  }

  /** The models that are asked: the picked one, and the other one where two are compared. */
  get asked() {
    return this.isComparing ? [this.model, $("second").value] : [this.model];
  }

  get isComparing() {
    return $("compare").getAttribute("aria-pressed") === "true";
  }

  #fill({ system, temperature, maxOutput }) {
    $("system").value = system ?? "";
    this.temperature = temperature ?? null;
    $("max-output").value = maxOutput ?? "";
  }

  #offered() {
    return this.#models.filter(({ project }) => !project || project === this.project);
  }

  get project() {
    return $("project").value;
  }

  get system() {
    return $("system").value.trim();
  }

  /** A whole number, or null for as much as there is room and credit for. */
  get maxOutput() {
    const wanted = Math.floor(Number($("max-output").value));
    return wanted >= 1 ? Math.min(wanted, 1_000_000) : null;
  }

  /** Show the models that the project may use; where the picked one isn't among them, the first is picked. */
  #offer() {
    const offered = this.#offered();
    const second = $("second").value;
    $("second").replaceChildren(...offered.map(({ id }) => el("option", { value: id }, id)));
    const other = offered.find(({ id }) => id === second) ?? offered.find(({ id, is_ready }) => id !== "auto" && id !== this.model && is_ready);
    if (other) $("second").value = other.id;
    $("compare").hidden = offered.length < 2;
    $("models").replaceChildren(...offered.map(choice));
    if (!offered.some(({ id }) => id === this.model)) this.model = offered[0]?.id ?? "";
  }

  #listen() {
    $("project").addEventListener("input", () => this.#offer());
    $("models").addEventListener("change", (event) => {
      this.model = event.target.value;
      this.#changed();
    });
    $("model-menu").addEventListener("toggle", (event) => {
      if (event.newState !== "open") return;
      const { left, bottom } = $("model-button").getBoundingClientRect();
      const menu = $("model-menu");
      menu.style.top = `${bottom + 4}px`;
      menu.style.left = `${Math.max(Math.min(left, innerWidth - menu.offsetWidth - 12), 12)}px`;
      $("models").querySelector(":checked")?.focus();
    });
    $("models").addEventListener("click", (event) => {
      if (!event.detail || !event.target.closest("label")) return; // the arrow keys only move through the list
      $("model-menu").hidePopover();
      $("message").focus();
    });
    $("models").addEventListener("keydown", (event) => {
      if (event.key !== "Enter") return;
      event.preventDefault();
      $("model-menu").hidePopover();
      $("message").focus();
    });
    $("temperature").addEventListener("input", () => { this.temperature = Number($("temperature").value); });
    $("second").addEventListener("change", () => this.dispatchEvent(new Event("change")));
    $("compare").addEventListener("click", () => {
      const isOn = !this.isComparing;
      $("compare").setAttribute("aria-pressed", String(isOn));
      $("second-place").hidden = !isOn;
      if (isOn) $("second").focus();
      this.dispatchEvent(new Event("change"));
    });
    for (const id of ["project", "system", "temperature", "max-output"]) {
      $(id).addEventListener("input", () => this.#changed());
    }
    $("reset-settings").addEventListener("click", () => {
      $("system").value = $("max-output").value = "";
      this.temperature = null;
      this.#changed();
    });
  }

  #changed() {
    this.#show();
    try {
      localStorage.setItem(this.#key, JSON.stringify({ project: this.project, ...this.kept }));
    } catch {
      // The browser has no room for it: it lasts as long as the page.
    }
    this.dispatchEvent(new Event("change"));
  }

  #show() {
    $("model-name").textContent = $("model-name").title = this.model || "no model";
    $("temperature").value = this.temperature ?? TEMPERATURE;
    $("temperature-shown").textContent = this.temperature?.toFixed(1) ?? "model’s own";
    const radio = $("models").querySelector(`[value="${CSS.escape(this.model)}"]`);
    if (radio) radio.checked = true;
    $("model-button").disabled = !this.#models.length;
  }
}

/** A row of the model picker. */
function choice(model) {
  const rates = model.pricing?.tiers[0]?.credits_per_million;
  const price = rates && ["input", "cache_read", "output"].filter((name) => rates[name] !== undefined).map((name) =>
    el("span", {}, `${{ input: "in", cache_read: "cached", output: "out" }[name]} `, el("b", {}, trimmed(rates[name]))));
  return el(
    "label",
    { class: "model-choice" },
    el("input", { type: "radio", name: "model", value: model.id }),
    el("span", { class: "model-text" },
      el("strong", {}, model.id),
      el("span", { class: "muted" }, model.description || ""),
      el("span", { class: "model-facts" },
        model.base ? el("span", {}, "adapter of ", el("b", {}, model.base)) : "",
        model.capabilities?.vision ? el("span", {}, "sees images") : "",
        model.kinds.includes("classification") && !model.kinds.includes("chat") ? el("span", {}, "answers with a label") : "",
        el("span", {}, el("b", {}, size(model.context_length)), " context"),
        ...(price ?? [el("span", {}, "priced as the model it picks")]),
        model.is_ready ? "" : el("span", { class: "warn" }, "not ready"))),
  );
}

function trimmed(amount) {
  const value = Number(amount);
  return Number.isInteger(value) ? count(value) : String(value);
}
