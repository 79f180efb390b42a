// Markdown as safe elements. HTML in it stays text, images are off, links go to http(s) only.

import MarkdownIt from "markdown-it";
import DOMPurify from "dompurify";

import { copy, el, icon } from "./dom.js";
import { highlight } from "./highlight.js";
import { beginsJson, laidOut } from "./json.js";
import { formulas, typeset } from "./math.js";

const LONGEST = 20_000; // characters of a paragraph, heading or cell that are read as Markdown

const markdown = new MarkdownIt({ html: false, linkify: true, breaks: false });
formulas(markdown);
markdown.core.ruler.at("inline", (state) => {
  for (const token of state.tokens) {
    if (token.type !== "inline") continue;
    if (token.content.length > LONGEST) token.type = "text"; // shown as it is written: no later rule reads it
    else state.md.inline.parse(token.content, state.md, state.env, token.children);
  }
});
markdown.validateLink = (address) => /^https?:\/\//i.test(address.trim());
markdown.renderer.rules.image = (tokens, index) => markdown.utils.escapeHtml(`[image: ${tokens[index].content}]`);
for (const rule of ["th_open", "td_open"]) {
  markdown.renderer.rules[rule] = (tokens, index, options, env, self) => {
    const align = tokens[index].attrGet("style")?.match(/text-align:(\w+)/)?.[1];
    tokens[index].attrs = align ? [["class", `align-${align}`]] : null; // the page's policy allows no inline style
    return self.renderToken(tokens, index, options);
  };
}

const ALLOWED = {
  ALLOWED_TAGS: [
    "a", "blockquote", "br", "code", "del", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "li", "ol", "p", "pre", "s",
    "strong", "table", "tbody", "td", "th", "thead", "tr", "ul",
  ],
  ALLOWED_ATTR: ["href", "start", "class"],
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
  RETURN_DOM_FRAGMENT: true,
};
DOMPurify.addHook("afterSanitizeAttributes", (node) => {
  if (node.tagName === "A") {
    if (!/^https?:\/\//i.test(node.getAttribute("href") ?? "")) node.removeAttribute("href");
    node.setAttribute("rel", "noopener noreferrer");
    node.setAttribute("target", "_blank");
  }
  const shown = [...node.classList ?? []].filter((name) => /^(language-[\w+#.-]+|align-(left|right|center)|math-(inline|display)|hljs-[a-z_-]+)$/.test(name));
  if (node.hasAttribute?.("class")) node.className = shown.join(" ");
});

/** Return the elements of `text`. */
export function render(text) {
  const fragment = DOMPurify.sanitize(markdown.render(text), ALLOWED);
  for (const table of fragment.querySelectorAll("table")) {
    const scroll = el("div", { class: "scroll", tabIndex: 0 });
    table.replaceWith(scroll);
    scroll.append(table);
  }
  for (const block of fragment.querySelectorAll("pre")) dress(block);
  typeset(fragment);
  return fragment;
}

/** Return the elements of an answer: JSON as a code block, everything else as Markdown. */
export function renderAnswer(text) {
  const json = laidOut(text);
  const fragment = json === null ? render(text) : codeBlock(json, "json");
  highlight(fragment);
  return fragment;
}

/** Return a block of code. */
function codeBlock(text, language) {
  const fragment = document.createDocumentFragment();
  const block = el("pre", {}, el("code", { class: `language-${language}` }, text));
  fragment.append(block);
  dress(block);
  return fragment;
}

/** Put a code block under a line with its language and a button that copies it. */
function dress(block) {
  const code = block.querySelector("code");
  const language = code?.className.match(/language-(\S+)/)?.[1] ?? "text";
  const button = el("button", { type: "button", class: "tool copy-block" }, icon("copy"), el("span", {}, "Copy code"));
  button.addEventListener("click", () => copy((code ?? block).textContent.replace(/\n$/, ""), button));
  const frame = el("div", { class: "code" }, el("div", { class: "code-head" }, el("span", {}, language), button));
  block.replaceWith(frame);
  block.tabIndex = 0;
  frame.append(block);
}

/**
 * Shows text that is still growing in `container`: once per frame, and of the blocks only the last, open one anew. What
 * the reader has selected stays: it is painted again when they let go.
 */
export class Growing {
  #container;
  #open = el("div", { class: "open" });
  #text = "";
  #closed = 0; // characters whose blocks can't change any more
  #frame = 0;
  #isEnded = false;
  #after;

  /** `after` is called after each painting. */
  constructor(container, after = () => {}) {
    this.#container = container;
    this.#after = after;
    container.replaceChildren(this.#open);
  }

  /** The text is `text` now: what it was, and more. */
  grow(text) {
    this.#text = text;
    this.#frame ||= requestAnimationFrame(() => this.#paint());
  }

  /** The text is complete: show all of it as one. */
  end(text) {
    this.#text = text;
    this.#isEnded = true;
    cancelAnimationFrame(this.#frame);
    this.#paint();
  }

  /** Paint no more. */
  forget() {
    cancelAnimationFrame(this.#frame);
  }

  #paint() {
    this.#frame = 0;
    const changed = this.#isEnded ? this.#container : this.#open;
    if (isSelected(changed)) return document.addEventListener("selectionchange", () => this.#frame ||= requestAnimationFrame(() => this.#paint()), { once: true });
    if (this.#isEnded) this.#container.replaceChildren(renderAnswer(this.#text));
    else if (beginsJson(this.#text)) {
      this.#open.replaceChildren(codeBlock(this.#text, "json"));
      this.#container.replaceChildren(this.#open);
    } else {
      const rest = this.#text.slice(this.#closed);
      const cut = closedPart(rest);
      if (cut) {
        const closed = render(rest.slice(0, cut));
        highlight(closed);
        this.#open.before(closed);
        this.#closed += cut;
      }
      this.#open.replaceChildren(render(rest.slice(cut)));
    }
    this.#after();
  }
}

function isSelected(element) {
  const selection = getSelection();
  return selection.rangeCount > 0 && !selection.isCollapsed && selection.getRangeAt(0).intersectsNode(element);
}

/**
 * Return how many characters of `text` belong to blocks that more text can't change: all before the last block that
 * begins on a finished line. (On an unfinished line "2" may yet become the list's next item.)
 */
export function closedPart(text) {
  const lines = text.split("\n");
  const begins = markdown
    .parse(text, {})
    .filter((token) => token.level === 0 && token.nesting >= 0 && token.map)
    .map((token) => token.map[0]);
  const last = begins.filter((line) => line < lines.length - 1).at(-1);
  if (!last || begins.length < 2) return 0;
  return lines.slice(0, last).reduce((sum, line) => sum + line.length + 1, 0);
}
