// Before a message is sent: about how many tokens it has, what they cost, and how much of the model's context is used.

import { el } from "./dom.js";
import { count, credits, size } from "./numbers.js";
import { contentOf } from "./conversation.js";

const PAUSE = 400; // milliseconds without typing, before the server is asked
const IMAGE_TOKENS = 1000; // about; models differ
const CHARACTERS = 4; // of a token, until this conversation has told better

/** Shows the estimate in `place` and the context's gauge in `gauge`. */
export class Estimate {
  #data;
  #place;
  #gauge;
  #timer = 0;
  #asked = 0;

  constructor(data, place, gauge) {
    this.#data = data;
    this.#place = place;
    this.#gauge = gauge;
  }

  /** Show what `question`, behind the branch of `conversation`, would be, soon. */
  show(conversation, question, settings) {
    clearTimeout(this.#timer);
    const number = ++this.#asked;
    const isEmpty = !contentOf(question).length;
    const tokens = tokensOf(conversation, isEmpty ? null : question, settings.system);
    const window = settings.card()?.context_length ?? 0;
    this.#fill(tokens, window);
    if (isEmpty || !settings.model) return this.#place.replaceChildren();
    this.#timer = setTimeout(async () => {
      const told = await Promise.all(settings.asked.map((model) => this.#ask(conversation, question, settings, model, tokens)));
      if (number !== this.#asked) return;
      this.#place.replaceChildren(...told.filter(Boolean).flatMap((one, index) => [index ? el("br") : "", one]));
      const narrowest = Math.min(...told.filter(Boolean).map(({ context }) => context ?? Infinity));
      if (Number.isFinite(narrowest)) this.#fill(tokens, narrowest);
    }, PAUSE);
  }

  async #ask(conversation, question, settings, model, tokens) {
    const last = conversation.path().findLast((turn) => turn.model);
    const body = {
      model,
      tokens,
      text: question.content.slice(0, 20_000),
      images: question.files?.some(({ image }) => image) ? "data" : "none",
      conversation: last?.model ?? "",
      project: settings.project,
    };
    const headers = { "x-csrftoken": this.#data.csrf, "content-type": "application/json" };
    try {
      const answer = await fetch(this.#data.urls.estimate, { method: "POST", headers, body: JSON.stringify(body) });
      if (!answer.ok) return null;
      const told = await answer.json();
      if (told.refusal) return el("span", { class: "warn" }, told.refusal);
      const name = told.model === model && settings.asked.length < 2 ? "" : ` by ${told.model}`;
      const cost = told.prompt_micro === undefined ? "" : ` · at most ${credits(told.prompt_micro)} credits, and ${credits(told.thousand_micro)} per 1,000 of the answer`;
      const shown = el("span", { title: "An estimate: tokens that are cached cost less" }, `About ${count(tokens)} tokens${name}${cost}`);
      return Object.assign(shown, { context: told.context });
    } catch {
      return null; // an estimate that can't be had now is had with the next letter
    }
  }

  #fill(tokens, window) {
    this.#gauge.hidden = !window || !tokens;
    if (this.#gauge.hidden) return;
    const share = tokens / window;
    const words = `${count(tokens)} of ${count(window)} tokens of the model’s context`;
    const meter = el("meter", { min: 0, max: 1, high: 0.8, optimum: 0, value: Math.min(share, 1), "aria-label": words });
    this.#gauge.title = words;
    this.#gauge.replaceChildren(meter, el("span", { "aria-hidden": "true" }, `${share < 0.01 ? "<1" : Math.round(share * 100)} % of ${size(window)}`));
  }
}

/** About how many tokens the branch has with `question` behind it; from what its last answer was charged, where there is one. */
export function tokensOf(conversation, question, system = "") {
  const path = conversation.path();
  const at = path.findLastIndex(({ usage }) => usage?.input_tokens);
  const counted = path[at]?.usage;
  const known = counted ? counted.input_tokens + (counted.output_tokens - (counted.output_tokens_details?.reasoning_tokens ?? 0)) : 0;
  const before = counted ? lengthOf(conversation.input(path[at].parent)) + system.length : 0;
  const each = counted && before > 200 ? Math.max(before / counted.input_tokens, 1) : CHARACTERS;
  const rest = [...path.slice(at + 1), ...(question ? [question] : [])].map((turn) => ({ content: contentOf(turn) }));
  const more = lengthOf(rest) + (counted ? 0 : system.length);
  const images = rest.flatMap(({ content }) => content).filter(({ type }) => type === "input_image").length;
  return known + Math.ceil(more / each) + images * IMAGE_TOKENS;
}

function lengthOf(messages) {
  return messages.reduce((sum, { content }) => sum + (typeof content === "string" ? content.length : (content[0].text ?? "").length), 0);
}
