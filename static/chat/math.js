// Formulas in Markdown: kept from Markdown's own signs, and shown as MathML by KaTeX, which is loaded when one comes.

const LONGEST = 4_000; // characters of a formula; a longer one stays as it is written
const AT_ONCE = 8_000; // characters of formulas that are shown in one frame; the others follow in the next
const PAIRS = [["$$", "$$"], ["\\[", "\\]"], ["\\(", "\\)"], ["$", "$"]];

/** Teach `markdown` formulas between \( \), \[ \], $$ $$ and, where no space or digit says it is money, $ $. */
export function formulas(markdown) {
  markdown.inline.ruler.before("escape", "math", (state, silent) => {
    for (const [open, close] of PAIRS) {
      if (!state.src.startsWith(open, state.pos)) continue;
      const begin = state.pos + open.length;
      const end = next(state, close, begin);
      const tex = end - begin > LONGEST ? "" : state.src.slice(begin, end);
      if (!tex.trim() || (open === "$" && !isFormula(tex, state.src[end + 1]))) continue;
      if (!silent) push(state, "math_inline", tex, open);
      state.pos = end + close.length;
      return true;
    }
    return false;
  });
  markdown.block.ruler.before("fence", "math", (state, first, last, silent) => {
    const line = (number) => state.src.slice(state.bMarks[number] + state.tShift[number], state.eMarks[number]);
    const [open, close] = PAIRS.slice(0, 2).find(([sign]) => line(first).startsWith(sign)) ?? [];
    if (!open || state.sCount[first] - state.blkIndent >= 4) return false;
    const at = next(state, close, state.bMarks[first] + state.tShift[first] + open.length);
    if (at - state.bMarks[first] > LONGEST) return false;
    let end = first;
    while (end < last && state.eMarks[end] < at) end += 1;
    if (end >= last || state.src.slice(at + close.length, state.eMarks[end]).trim()) return false;
    if (silent) return true;
    const text = state.getLines(first, end + 1, state.blkIndent, false).trim();
    push(state, "math_block", text.slice(open.length, -close.length), open).map = [first, end + 1];
    state.line = end + 1;
    return true;
  }, { alt: ["paragraph", "blockquote", "list"] });
  const shown = (tokens, index) => {
    const code = `<code class="math-${tokens[index].info}">${markdown.utils.escapeHtml(tokens[index].content.trim())}</code>`;
    return tokens[index].type === "math_block" ? `<p>${code}</p>\n` : code;
  };
  markdown.renderer.rules.math_inline = shown;
  markdown.renderer.rules.math_block = shown;
}

const found = new WeakMap(); // what `next` has found, by the state of a parse

/** Return where `sign` comes next from `begin` on, Infinity where it doesn't; looked for once for all starts before it. */
function next(state, sign, begin) {
  if (!found.has(state)) found.set(state, {});
  const places = found.get(state);
  const known = places[sign];
  if (known && known.from <= begin && begin <= known.at) return known.at;
  const at = state.src.indexOf(sign, begin);
  places[sign] = { from: begin, at: at < 0 ? Infinity : at };
  return places[sign].at;
}

function push(state, type, tex, open) {
  const token = state.push(type, "code", 0);
  token.content = tex;
  token.info = open === "$" || open === "\\(" ? "inline" : "display";
  return token;
}

/** "$5 and $6" is money: a formula begins and ends with no space, holds no code, and no digit follows it. */
function isFormula(tex, next) {
  return !/^\s|\s$|\n\n|\x60/.test(tex) && !/\d/.test(next ?? "");
}

let katex = null; // the library, once it was asked for

/** Show the formulas in `fragment` as such; until the library is there, and where it can't be had, as they are written. */
export function typeset(fragment) {
  const places = [...fragment.querySelectorAll("code.math-inline, code.math-display")];
  if (!places.length) return;
  if (globalThis.katex) return showAll(places);
  katex ??= import("katex");
  katex.then(() => showAll(places), () => { katex = null; });
}

/** Show formulas, so many in a frame that the page stays usable meanwhile. */
function showAll(places) {
  let room = AT_ONCE;
  while (places.length && room > 0) {
    const place = places.shift();
    room -= place.textContent.length;
    show(place);
  }
  if (places.length) requestAnimationFrame(() => showAll(places.filter((place) => place.isConnected)));
}

function show(place) {
  const tex = place.textContent;
  const isDisplay = place.classList.contains("math-display");
  const frame = document.createElement("span");
  frame.className = isDisplay ? "math display" : "math";
  frame.title = tex;
  try {
    globalThis.katex.render(tex, frame, { output: "mathml", displayMode: isDisplay, trust: false, maxExpand: 200, maxSize: 20 });
  } catch {
    return; // no formula: it stays as it is written
  }
  place.replaceWith(frame);
}
