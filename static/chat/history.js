// The conversations at the left: searched, opened, renamed, shared, exported, deleted with a way back.

import { asMarkdown } from "./conversation.js";
import { at } from "./library.js";
import { copy, el, icon } from "./dom.js";

const PAUSE = 250; // milliseconds without typing, before a search
const KEY = "sluice.chat.history"; // whether the panel is open beside the conversation
const $ = (id) => document.getElementById(id);
const isNarrow = matchMedia("(max-width: 64rem)");

/**
 * The panel. `actions`: open(id), changed(id) when its name or state is another, deleted(id, undo, title); `current()` is
 * the open conversation's id, `running()` the ids of those in which answers are made.
 */
export class History {
  #library;
  #drafts;
  #actions;
  #urls;
  #timer = 0;
  #asked = 0;
  #lines = [];
  #chosen = null; // the line whose menu is open

  constructor(library, drafts, urls, actions) {
    this.#library = library;
    this.#drafts = drafts;
    this.#urls = urls;
    this.#actions = actions;
    $("search").addEventListener("input", () => {
      clearTimeout(this.#timer);
      this.#timer = setTimeout(() => this.load(), PAUSE);
    });
    this.#place();
    isNarrow.addEventListener("change", () => this.#place());
    $("show-history").addEventListener("click", () => this.toggle());
    $("hide-history").addEventListener("click", () => this.toggle(false));
    $("history").addEventListener("toggle", (event) => {
      $("show-history").setAttribute("aria-expanded", String(event.newState === "open"));
      if (event.newState === "open") $("search").focus();
    });
    $("conversations").addEventListener("keydown", (event) => this.#move(event));
    this.#listen();
  }

  /** Beside the conversation where there is room, else a drawer over it. */
  #place() {
    const panel = $("history");
    if (isNarrow.matches) {
      panel.hidden = false;
      panel.popover = "auto";
      $("show-history").setAttribute("aria-expanded", "false");
    } else {
      if (panel.popover && panel.matches(":popover-open")) panel.hidePopover();
      panel.popover = null;
      panel.hidden = localStorage.getItem(KEY) === "closed";
      $("show-history").setAttribute("aria-expanded", String(!panel.hidden));
    }
  }

  /** Show the panel, or hide it. */
  toggle(isShown) {
    const panel = $("history");
    if (isNarrow.matches) return panel.togglePopover(isShown);
    panel.hidden = !(isShown ?? panel.hidden);
    localStorage.setItem(KEY, panel.hidden ? "closed" : "open");
    $("show-history").setAttribute("aria-expanded", String(!panel.hidden));
    (panel.hidden ? $("show-history") : $("search")).focus();
  }

  /** Read the list anew. */
  async load() {
    const number = ++this.#asked;
    const query = $("search").value.trim();
    let lines;
    try {
      lines = await this.#library.list(query);
    } catch {
      return; // what was read before stays
    }
    if (number !== this.#asked) return;
    const known = new Set(lines.map(({ id }) => id));
    const drafts = query ? [] : this.#drafts.list().filter(({ id }) => !known.has(id)).map((one) => ({ ...one, isDraft: true }));
    this.#lines = [...drafts, ...lines];
    this.show();
  }

  /** A conversation was saved: it is the latest. */
  saved({ id, title }) {
    const first = this.#lines.find(({ isDraft }) => !isDraft);
    if (first?.id === id && first.title === title && !$("search").value) this.show();
    else this.load();
  }

  /** Show what was read, with what is open and running now. */
  show() {
    const focused = document.activeElement?.closest("#conversations li")?.dataset.id;
    const running = this.#actions.running();
    const current = this.#actions.current();
    $("conversations").replaceChildren(...this.#lines.map((line) => this.#entry(line, current, running)));
    $("no-conversations").hidden = this.#lines.length > 0;
    $("no-conversations").textContent = $("search").value.trim() ? "None has these words." : "None yet: the first message begins one.";
    if (focused) $("conversations").querySelector(`[data-id="${CSS.escape(focused)}"] a`)?.focus();
  }

  /** The line of a conversation, if it is in the list. */
  line(id) {
    return this.#lines.find((line) => line.id === id);
  }

  #entry(line, current, running) {
    const title = line.title || "New chat";
    const link = el("a", { href: `#${line.id}`, title, ...(line.id === current ? { "aria-current": "page" } : {}) },
      el("span", { class: "label" }, title),
      line.isDraft ? el("span", { class: "fine" }, "draft") : running.has(line.id) ? el("span", { class: "fine" }, "answering") : el("time", { class: "fine", dateTime: line.changed_at, title: new Date(line.changed_at).toUTCString() }, day(line.changed_at)));
    if (line.is_shared) link.querySelector(".label").after(el("span", { class: "fine" }, "shared"));
    link.addEventListener("click", (event) => {
      if (event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault();
      if (isNarrow.matches) $("history").hidePopover();
      this.#actions.open(line.id);
    });
    const more = el("button", { type: "button", class: "tool", title: `Actions for ${title}`, "aria-label": `Actions for ${title}` }, icon("more"));
    more.addEventListener("click", () => this.menu(line, more));
    return el("li", { "data-id": line.id }, link, line.isDraft ? "" : more);
  }

  /** Arrow keys go through the list. */
  #move(event) {
    if (event.key !== "ArrowDown" && event.key !== "ArrowUp") return;
    const links = [...$("conversations").querySelectorAll("a")];
    const next = links[links.indexOf(event.target.closest("li")?.querySelector("a")) + (event.key === "ArrowDown" ? 1 : -1)];
    if (!next) return;
    event.preventDefault();
    next.focus();
  }

  /** Open the menu of a conversation at `button`. */
  menu(line, button) {
    this.#chosen = line;
    const menu = $("conversation-menu");
    for (const one of menu.children) {
      if (one.dataset.standsFor) one.hidden = button.id !== "more" || $(one.dataset.standsFor).hidden;
      else one.hidden = line.isNew || (one.id === "share-conversation" && !this.#library.canShare);
    }
    menu.showPopover();
    const { right, bottom, top } = button.getBoundingClientRect();
    menu.style.left = `${Math.max(right - menu.offsetWidth, 8)}px`;
    menu.style.top = `${bottom + menu.offsetHeight + 8 > innerHeight ? Math.max(top - menu.offsetHeight - 4, 8) : bottom + 4}px`;
    [...menu.children].find((one) => one.checkVisibility()).focus();
  }

  #listen() {
    const choose = (id, act) => $(id).addEventListener("click", async () => {
      $("conversation-menu").hidePopover();
      try {
        await act(this.#chosen);
      } catch (error) {
        this.#actions.problem(error.message);
      }
    });
    for (const one of document.querySelectorAll("[data-stands-for]")) one.addEventListener("click", () => {
      $("conversation-menu").hidePopover();
      $(one.dataset.standsFor).click();
    });
    $("conversation-menu").addEventListener("keydown", (event) => {
      if (event.key !== "ArrowDown" && event.key !== "ArrowUp") return;
      event.preventDefault();
      const buttons = [...$("conversation-menu").querySelectorAll("button")].filter((one) => one.checkVisibility());
      buttons.at((buttons.indexOf(document.activeElement) + (event.key === "ArrowDown" ? 1 : -1)) % buttons.length).focus();
    });
    choose("rename-conversation", ({ title }) => {
      $("title").value = title;
      $("rename-dialog").returnValue = "";
      $("rename-dialog").showModal();
      $("title").select();
    });
    $("rename-dialog").addEventListener("close", async () => {
      const title = $("title").value.trim();
      if ($("rename-dialog").returnValue !== "rename" || !title) return;
      try {
        await this.#library.rename(this.#chosen.id, title);
        this.#actions.changed(this.#chosen.id);
        await this.load();
      } catch (error) {
        this.#actions.problem(error.message);
      }
    });
    choose("share-conversation", (line) => {
      $("shared-address").textContent = new URL(at(this.#urls.shared, line.id), location.href).href;
      this.#showShared(line.is_shared);
      $("share-dialog").showModal();
    });
    $("share").addEventListener("click", async () => {
      try {
        await this.#library.share(this.#chosen.id, !this.#chosen.is_shared);
        this.#chosen.is_shared = !this.#chosen.is_shared;
        this.#showShared(this.#chosen.is_shared);
        await this.load();
      } catch (error) {
        this.#actions.problem(error.message);
      }
    });
    $("copy-address").addEventListener("click", (event) => copy($("shared-address").textContent, event.currentTarget));
    choose("export-markdown", (line) => this.#export(line, "md", "text/markdown", asMarkdown));
    choose("export-json", (line) => this.#export(line, "json", "application/json", (one) => JSON.stringify(one.stored, null, 2)));
    choose("delete-conversation", async ({ id, title }) => {
      const undo = await this.#library.remove(id);
      this.#actions.deleted(id, async () => {
        await undo();
        await this.load();
      }, title);
      await this.load();
    });
  }

  #showShared(isShared) {
    $("share").textContent = isShared ? "Stop sharing" : "Share";
    $("share").classList.toggle("quiet", isShared);
    $("shared-state").textContent = isShared
      ? "Members of this tenant who may chat can read it at this address, as it is when they look:"
      : "Nobody else can read it now. Once it is shared, members of this tenant who may chat can read it at:";
    $("copy-address").hidden = !isShared;
  }

  async #export({ id, title }, ending, type, make) {
    const conversation = await this.#library.open(id);
    const address = URL.createObjectURL(new Blob([make(conversation)], { type }));
    const name = `${title.replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "").slice(0, 60) || "conversation"}.${ending}`;
    el("a", { href: address, download: name }).click();
    setTimeout(() => URL.revokeObjectURL(address), 60_000);
  }
}

/** The time of today's, the day of others'. */
function day(moment) {
  const at = new Date(moment);
  if (at.toDateString() === new Date().toDateString()) return at.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" });
  const year = at.getFullYear() === new Date().getFullYear() ? {} : { year: "numeric" };
  return at.toLocaleDateString("en-GB", { day: "numeric", month: "short", ...year });
}
