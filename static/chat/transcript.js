// The conversation as it is seen: one article per turn, its tools, its meter, what went wrong.

import { shown } from "./attachments.js";
import { ENDED } from "./conversation.js";
import { copy, el, sends, tool } from "./dom.js";
import { explain, isOutOfCredit } from "./faults.js";
import { Growing, renderAnswer } from "./markdown.js";
import { routeDetails, showMeter } from "./meter.js";
import { at } from "./library.js";
import { count, credits, moment } from "./numbers.js";

const AT_END = 4; // pixels: where zoom rounds, the end is not reached to the last one

/**
 * Shows turns; `actions` are called with a turn: ask(text), draft(text), regenerate, edit(turn, text), proceed, select (a
 * branch), pick (of those that are compared). `account()` resolves to what is left, `branches(turn)` are those at a turn.
 */
export class Transcript {
  #container;
  #scroller;
  #actions;
  #context;
  #shown = new Map(); // turn id → {article, body, meter, notes, thought, growing}
  #isFollowing = true; // the reader is at the end, and stays there as the answer grows
  #toLatest;

  /** `toLatest` is a button that is shown while the reader is elsewhere. */
  constructor(container, scroller, toLatest, actions, context) {
    this.#container = container;
    this.#scroller = scroller;
    this.#toLatest = toLatest;
    this.#actions = actions;
    this.#context = context;
    scroller.addEventListener("scroll", () => {
      const { scrollTop, scrollHeight, clientHeight } = scroller;
      this.#isFollowing = scrollHeight - scrollTop - clientHeight <= AT_END;
      toLatest.hidden = this.#isFollowing;
    });
    toLatest.addEventListener("click", () => this.toEnd());
  }

  /** Show exactly `turns`, those that are `compared` beside each other, leaving alone what is shown already. */
  show(turns, compared = []) {
    const ids = new Set(turns.map(({ id }) => id));
    for (const [id, { article }] of this.#shown) {
      if (ids.has(id)) continue;
      article.remove();
      this.#shown.delete(id);
    }
    this.#container.querySelector(".empty")?.remove();
    if (!turns.length) this.#container.append(this.#empty());
    const pair = compared.length > 1 ? this.#container.querySelector(".compared") ?? el("div", { class: "compared", role: "group", "aria-label": "Two answers, compared" }) : null;
    const last = new Map(); // place → the last element that was put there
    const put = (place, element) => {
      const next = last.has(place) ? last.get(place).nextSibling : place.firstChild;
      if (next !== element) place.insertBefore(element, next); // what is there already isn't moved, nor the focus in it
      last.set(place, element);
    };
    for (const turn of turns) {
      if (!this.#shown.has(turn.id)) this.#add(turn);
      const parts = this.#shown.get(turn.id);
      const isCompared = pair !== null && compared.includes(turn);
      if (isCompared && last.get(this.#container) !== pair) put(this.#container, pair);
      put(isCompared ? pair : this.#container, parts.article);
      if (parts.isCompared !== isCompared) {
        parts.isCompared = isCompared;
        if (turn.role === "assistant" && ENDED.has(turn.state)) this.#dress(turn, parts);
      }
    }
    for (const empty of this.#container.querySelectorAll(".compared:empty")) empty.remove();
    this.toEnd();
  }

  /** Forget what is shown: another conversation comes. */
  clear() {
    for (const { growing } of this.#shown.values()) growing?.forget();
    this.#shown.clear();
    this.#container.replaceChildren();
  }

  /** More of `turn`'s text, or other counts, came. */
  grow(turn) {
    const parts = this.#shown.get(turn.id);
    if (!parts) return; // on another branch
    showThought(parts, turn);
    if (turn.content) {
      parts.growing ??= new Growing(parts.body, () => this.#follow());
      parts.growing.grow(turn.content);
    }
    showMeter(parts.meter, turn);
  }

  /** `turn` has ended. */
  end(turn) {
    const parts = this.#shown.get(turn.id);
    if (!parts) return;
    if (parts.growing && turn.content) parts.growing.end(turn.content);
    else parts.body.replaceChildren(renderAnswer(turn.content));
    parts.growing = null;
    showThought(parts, turn);
    this.#dress(turn, parts);
    this.#follow();
  }

  /** Scroll to the last line, and follow the answer from there on. */
  toEnd() {
    this.#isFollowing = true;
    this.#toLatest.hidden = true;
    this.#scroller.scrollTop = this.#scroller.scrollHeight;
  }

  /** The text of the last code block, if there is any. */
  lastCode() {
    return [...this.#container.querySelectorAll("pre code")].at(-1)?.textContent ?? "";
  }

  #follow() {
    if (this.#isFollowing) this.toEnd();
    else this.#toLatest.hidden = false;
  }

  #empty() {
    const { models, samples, isOperator } = this.#context;
    if (!models.length) {
      const say = isOperator
        ? [el("p", {}, "Add one on the server, then reload:"), el("pre", {}, "python manage.py models add <hub id | folder | GGUF file>")]
        : [el("p", {}, "Your plan has no model to chat with. Ask your operator.")];
      return el("div", { class: "empty" }, el("h2", {}, "No model yet"), ...say);
    }
    const ideas = ["What is the capital of France?", "Write a haiku about rivers.", "Explain a token bucket in three sentences."];
    const buttons = ideas.map((text) => {
      const button = el("button", { type: "button", class: "quiet idea" }, text);
      button.addEventListener("click", () => this.#actions.ask(text));
      return button;
    });
    for (const { title, text } of samples) {
      const button = el("button", { type: "button", class: "quiet idea", title: "Fills in the message, to be sent with Enter" }, title, " …");
      button.addEventListener("click", () => this.#actions.draft(text));
      buttons.push(button);
    }
    return el("div", { class: "empty" }, el("h2", {}, "What would you like to know?"),
      el("p", { class: "muted" }, "Each answer shows its tokens, its cost and why its model was chosen."),
      el("div", { class: "ideas" }, ...buttons));
  }

  #add(turn) {
    const isUser = turn.role === "user";
    const body = el("div", { class: isUser ? "bubble" : "prose" });
    const meter = el("p", { class: "meter" });
    const notes = el("div", { class: "notes" });
    const name = el("h2", { class: "visually-hidden" }, isUser ? "You" : "Answer");
    const article = el("article", { class: `turn ${turn.role}`, "data-turn": turn.id }, name, body);
    const parts = { article, body, meter, notes, thought: null, growing: null, isCompared: false };
    this.#shown.set(turn.id, parts);
    this.#container.append(article);
    if (isUser) {
      body.textContent = turn.content;
      body.hidden = !turn.content && Boolean(turn.files?.length);
      if (turn.files?.length) body.before(el("ul", { class: "files", "aria-label": "Files" }, ...turn.files.map((file) => el("li", {}, ...shown(file)))));
      article.append(el("div", { class: "tools" }, this.#switch(turn),
        tool("copy", "Copy", (event) => copy(turn.content, event.currentTarget)),
        tool("edit", "Edit", () => this.#edit(turn, parts))));
      return;
    }
    article.append(notes, meter);
    showThought(parts, turn);
    if (turn.state === "waiting") body.append(el("span", { class: "thinking", role: "img", "aria-label": "Waiting for the answer" }));
    else {
      body.append(renderAnswer(turn.content));
      if (ENDED.has(turn.state)) this.#dress(turn, parts);
    }
  }

  /** What stands below an answer once it has ended. */
  #dress(turn, parts) {
    const { article, notes, meter } = parts;
    article.querySelector(".foot")?.remove();
    notes.replaceChildren(...this.#notes(turn));
    showMeter(meter, turn);
    const foot = el("div", { class: "foot" }, el("div", { class: "tools" },
      parts.isCompared ? this.#button("Go on with this one", "pick", turn) : this.#switch(turn),
      turn.content ? tool("copy", "Copy", (event) => copy(turn.content, event.currentTarget)) : null,
      parts.isCompared || (notes.querySelector("button") && turn.state !== "length" && turn.state !== "credit")
        ? null // the note offers it
        : tool("again", "Regenerate", () => this.#actions.regenerate(turn)),
      turn.request ? el("a", { class: "tool", href: at(this.#context.urls.request, turn.request) }, "Request") : null));
    if (turn.account?.route) foot.append(routeDetails(turn.account.route));
    article.append(foot);
  }

  #notes(turn) {
    const { urls } = this.#context;
    if (turn.state === "credit" || isOutOfCredit(turn.fault)) return [this.#offer(turn)];
    if (turn.state === "stopped") return [note("You stopped this answer. Only what was generated is charged.")];
    if (turn.state === "length") {
      return [note(`The answer reached its limit of ${count(turn.usage?.output_tokens ?? 0)} tokens.`, this.#button("Continue", "proceed", turn))];
    }
    if (turn.state === "lost") {
      const seen = turn.request ? el("a", { href: at(urls.request, turn.request) }, "What it cost") : null;
      return [note("The connection was lost, which ended this answer. Only what was generated is charged.", seen, this.#button("Try again", "regenerate", turn))];
    }
    if (turn.state !== "failed") return [];
    const { title, text, retry } = explain(turn.fault, turn.account?.waived);
    const card = el("div", { class: "card bad" }, el("strong", {}, title), el("p", {}, text));
    const row = el("p", { class: "card-actions" });
    if (turn.fault.code === "not_signed_in") row.append(el("a", { class: "button", href: urls.sign_in }, "Sign in"));
    if (retry) row.append(this.#button("Try again", "regenerate", turn));
    if (row.childNodes.length) card.append(row);
    if (turn.fault.request_id) card.append(el("p", { class: "fine" }, "Request ", el("code", {}, turn.fault.request_id)));
    return [card];
  }

  /** Credit is out: what happened, what is left, whom to ask, and the way on. */
  #offer(turn) {
    const { urls, account } = this.#context;
    const isCut = turn.state === "credit";
    const happened = isCut
      ? `The answer ended after ${count(turn.usage?.output_tokens ?? 0)} tokens, at the last one that the credit paid for.`
      : "There is not enough credit for this message and one token of an answer. Nothing was charged.";
    const left = el("p", { class: "left" }, "Looking up what is left …");
    const say = (data) => {
      const more = data.restricted.map(({ models, more_micro }) => `, and ${credits(more_micro)} for ${models.join(", ")} alone`);
      const lines = [`${credits(data.available_micro)} credits are left${more.join("")}.`];
      if (data.next_grant_at) lines.push(`${data.next_grant} credits come with the next month, ${moment(data.next_grant_at)}.`);
      lines.push(data.owners.length ? `For more now, ask ${data.owners.join(" or ")}.` : "For more now, ask your operator for a grant.");
      left.textContent = lines.join(" ");
      return data;
    };
    const show = () => account().then(say, () => { left.textContent = "What is left can't be looked up right now."; return null; });
    show();
    const proceed = el("button", { type: "button" }, isCut ? "Continue the answer" : "Try again");
    proceed.addEventListener("click", async () => {
      proceed.disabled = true;
      await show();
      proceed.disabled = false;
      this.#actions[isCut ? "proceed" : "regenerate"](turn);
    });
    return el("div", { class: "card warn", "data-offer": "credit" },
      el("strong", {}, "Credit is used up"),
      el("p", {}, happened), left,
      el("p", { class: "card-actions" }, proceed, el("a", { class: "button quiet", href: urls.usage }, "See usage")),
      turn.fault?.request_id ? el("p", { class: "fine" }, "Request ", el("code", {}, turn.fault.request_id)) : null);
  }

  /** The branches at a turn, as ‹2/3›; nothing where there is one. */
  #switch(turn) {
    const branches = this.#context.branches?.(turn) ?? [];
    if (branches.length < 2) return null;
    const number = branches.indexOf(turn);
    const step = (to, name, glyph) => {
      const button = el("button", { type: "button", class: "tool", title: name, "aria-label": name, disabled: !branches[to] }, glyph);
      button.addEventListener("click", () => this.#actions.select(branches[to], name));
      return button;
    };
    return el("span", { class: "branches", role: "group", "aria-label": `Branch ${number + 1} of ${branches.length}` },
      step(number - 1, "Previous branch", "‹"), el("span", {}, `${number + 1}/${branches.length}`), step(number + 1, "Next branch", "›"));
  }

  /** Put the keyboard on a button of `turn`, which was shown anew. */
  focus(turn, name) {
    const { article } = this.#shown.get(turn.id);
    (article.querySelector(`[aria-label="${name}"]:enabled`) ?? article.querySelector(".branches button:enabled"))?.focus();
  }

  #button(text, action, turn) {
    const button = el("button", { type: "button", class: "quiet small" }, text);
    button.addEventListener("click", () => this.#actions[action](turn));
    return button;
  }

  #edit(turn, { article, body }) {
    if (article.querySelector("form")) return;
    const area = el("textarea", { value: turn.content, rows: Math.min(turn.content.split("\n").length + 1, 12), "aria-label": "Your message" });
    const cancel = el("button", { type: "button", class: "quiet small" }, "Cancel");
    const form = el("form", { class: "edit" }, area,
      el("div", { class: "edit-actions" }, cancel, el("button", { class: "small" }, "Send again")));
    const close = () => {
      form.replaceWith(body);
      article.querySelector(".tools").hidden = false;
    };
    cancel.addEventListener("click", close);
    form.addEventListener("keydown", (event) => {
      if (event.key === "Escape") close();
      if (sends(event)) {
        event.preventDefault();
        form.requestSubmit();
      }
    });
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (area.value.trim()) this.#actions.edit(turn, area.value.trim());
    });
    body.replaceWith(form);
    article.querySelector(".tools").hidden = true;
    area.focus();
  }
}

/** Show what the model thought above its answer: folded, as plain text. */
function showThought(parts, { reasoning, content }) {
  if (!reasoning) return;
  if (!parts.thought) {
    parts.thought = el("details", { class: "thought" }, el("summary"), el("p"));
    parts.body.before(parts.thought);
    parts.body.querySelector(".thinking")?.remove();
  }
  parts.thought.firstChild.textContent = content ? "Thought" : "Thinking …";
  parts.thought.lastChild.textContent = reasoning;
}

function note(text, ...more) {
  return el("p", { class: "note" }, el("span", {}, text), ...more);
}
