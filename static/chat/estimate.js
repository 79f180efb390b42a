// Before a message is sent: what its answer will cost, as the server quotes it, and how much of the model's context is used.

import { el } from "./dom.js";
import { count, credits, size } from "./numbers.js";
import { contentOf } from "./conversation.js";

const QUOTE = "/v1/responses/quote";
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

  /** Show what `question`, behind the branch of `conversation`, would cost, soon. */
  show(conversation, question, settings) {
    clearTimeout(this.#timer);
    const number = ++this.#asked;
    const isEmpty = !contentOf(question).length;
    const tokens = tokensOf(conversation, isEmpty ? null : question, settings.system);
    const window = settings.card()?.context_length ?? 0;
    this.#fill(tokens, window);
    if (isEmpty || !settings.model) return this.#place.replaceChildren();
    this.#timer = setTimeout(async () => {
      const told = (await Promise.all(settings.asked.map((model) => this.#ask(conversation, question, settings, model, tokens)))).filter(Boolean);
      if (number !== this.#asked) return;
      this.#place.replaceChildren(...told.flatMap((one, index) => [index ? el("br") : "", one]));
      const quoted = told.filter(({ quote }) => quote).map(({ quote }) => quote);
      if (quoted.length) this.#fill(Math.max(...quoted.map((one) => one.input_tokens)), Math.min(...quoted.map((one) => one.context_length)));
    }, PAUSE);
  }

  async #ask(conversation, question, settings, model, tokens) {
    const window = settings.card(model)?.context_length ?? 0;
    if (window && tokens > window) return el("span", { class: "warn" }, `About ${count(tokens)} tokens are more than the context of ${model}, ${count(window)} tokens.`);
    const body = JSON.stringify({
      model,
      input: [
        ...(settings.system ? [{ role: "system", content: settings.system }] : []),
        ...conversation.input(),
        { role: "user", content: contentOf(question) },
      ],
      ...(settings.maxOutput ? { max_output_tokens: settings.maxOutput } : {}),
    });
    if (body.length > this.#data.message_bytes) return null; // sending it will say so
    try {
      const answer = await fetch(`${QUOTE}?project=${settings.project}`, { method: "POST", headers: { "content-type": "application/json" }, body });
      const told = await answer.json();
      if (answer.ok) return Object.assign(el("span", { title: basisOf(told) }, wordsOf(told, told.model === model && settings.asked.length < 2)), { quote: told });
      return answer.status < 500 && answer.status !== 429 ? el("span", { class: "warn" }, told.error.message) : null;
    } catch {
      return null; // a quote that can't be had now is had with the next letter
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

/** A quote in a line; the model `isPlain` where it is the one that was picked. */
function wordsOf(quote, isPlain) {
  const tokens = `${quote.is_exact ? "" : "About "}${count(quote.input_tokens)} tokens${isPlain ? "" : ` by ${quote.model}`}`;
  const tier = quote.near_tier ? ` · from ${count(quote.near_tier.min_context)} tokens on dearer` : "";
  return `${tokens} · probably ${credits(quote.probably_micro)} credits, at most ${credits(quote.at_most_micro)}${tier}`;
}

/** What the probable cost rests on. */
function basisOf({ output_tokens: { basis, p50, requests } }) {
  const why = { own: `like half of your last ${count(requests)}`, model: `like half of this model’s last ${count(requests)}`, assumed: "assumed, since few earlier ones are known" }[basis];
  return `With an answer of ${count(p50)} tokens, ${why}`;
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
