// Making elements without markup: text is text, whatever it says.

/** Return a new element; `properties` are set on it ("class", "data-…" and "aria-…" as attributes), children appended. */
export function el(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null) continue;
    if (name in element && !name.includes("-")) element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined && child !== ""));
  return element;
}

const SVG = "http://www.w3.org/2000/svg";
const sheet = new URL("../icons.svg", import.meta.url).pathname;

/** Return the icon called `name`. */
export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  const use = document.createElementNS(SVG, "use");
  use.setAttribute("href", `${sheet}#${name}`);
  svg.append(use);
  return svg;
}

/** Return a small button with an icon and a name; `click` is called with the event. */
export function tool(iconName, name, click) {
  const button = el("button", { type: "button", class: "tool", title: name }, icon(iconName), el("span", {}, name));
  button.addEventListener("click", click);
  return button;
}

const isTouched = matchMedia("(hover: none) and (pointer: coarse)");

/** Whether a key sends what is typed: Enter does, but where a screen keyboard has no Shift+Enter for a new line. */
export function sends(event) {
  return event.key === "Enter" && !event.shiftKey && !event.isComposing && !isTouched.matches;
}

/** Copy `text` and say so on `button` for a moment. */
export async function copy(text, button) {
  const label = button.querySelector("span") ?? button;
  const before = button.dataset.label ?? label.textContent;
  button.dataset.label = before;
  try {
    await navigator.clipboard.writeText(text);
    label.textContent = "Copied";
  } catch {
    label.textContent = "Copying is not allowed here";
  }
  setTimeout(() => { label.textContent = before; }, 1600);
}
