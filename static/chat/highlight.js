// Colours in finished blocks of code: highlight.js, and of its languages the one that a block is in, when it comes.

import DOMPurify from "dompurify";

const LONGEST = 50_000; // characters; a longer block stays plain
const NAMES = {
  bash: "bash", sh: "bash", shell: "bash", zsh: "bash", console: "bash",
  c: "c", h: "c", cpp: "cpp", "c++": "cpp", cc: "cpp", hpp: "cpp",
  css: "css", diff: "diff", patch: "diff", go: "go", golang: "go", ini: "ini", toml: "ini", java: "java",
  javascript: "javascript", js: "javascript", jsx: "javascript", mjs: "javascript", json: "json",
  python: "python", py: "python", rust: "rust", rs: "rust", sql: "sql", typescript: "typescript", ts: "typescript", tsx: "typescript",
  xml: "xml", html: "xml", svg: "xml", yaml: "yaml", yml: "yaml",
};
const loaded = new Map(); // language → promise of the library that knows it

function load(language) {
  if (!loaded.has(language)) {
    loaded.set(language, Promise.all([import("highlight/core.mjs"), import(`highlight/${language}.mjs`)]).then(([core, grammar]) => {
      core.default.registerLanguage(language, grammar.default);
      return core.default;
    }));
    loaded.get(language).catch(() => loaded.delete(language));
  }
  return loaded.get(language);
}

/** Colour the blocks of code in `container`, as soon as their languages are there; one of no known language stays plain. */
export function highlight(container) {
  for (const code of container.querySelectorAll("pre > code[class^=language-]")) {
    const language = NAMES[code.className.replace("language-", "").toLowerCase()];
    if (!language || code.textContent.length > LONGEST) continue;
    load(language).then((library) => paint(code, library, language), () => {}); // without it the code is plain
  }
}

function paint(code, library, language) {
  const text = code.textContent;
  const { value } = library.highlight(text, { language, ignoreIllegals: true });
  const painted = DOMPurify.sanitize(value, { ALLOWED_TAGS: ["span"], ALLOWED_ATTR: ["class"], RETURN_DOM_FRAGMENT: true });
  if (painted.textContent === text) code.replaceChildren(painted);
}
