// JSON as it is read best: laid out, every name, text and number as it was written.

const TOKENS = /"[^"\\]*(?:\\.[^"\\]*)*"|[{}[\],:]|[^\s{}[\],:"]+/g;
const DEEPEST = 32; // levels that are indented: more would only widen the page

/** Whether `text`, which may still grow, begins like a JSON object or an array of them. */
export function beginsJson(text) {
  return /^\s*(\[\s*)*\{\s*("|\})/.test(text);
}

/** Return `text` with a line for each value, or null where it is no JSON object or array. */
export function laidOut(text) {
  try {
    const value = JSON.parse(text);
    if (value === null || typeof value !== "object") return null;
  } catch {
    return null;
  }
  let depth = 0;
  let last = "";
  const line = () => `\n${"  ".repeat(Math.min(depth, DEEPEST))}`;
  const pieces = text.match(TOKENS).map((token) => {
    const isOpened = last === "{" || last === "[";
    const isClosing = token === "}" || token === "]";
    if (isClosing) depth -= 1;
    const before = (isOpened && !isClosing) || (isClosing && !isOpened) || last === "," ? line() : last === ":" ? " " : "";
    if (token === "{" || token === "[") depth += 1;
    last = token;
    return before + token;
  });
  return pieces.join("");
}
