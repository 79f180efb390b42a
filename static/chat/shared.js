// A shared conversation: its answers stand in the page as text, and are laid out as Markdown here.

import { askBeforeLeaving } from "./links.js";
import { renderAnswer } from "./markdown.js";

for (const answer of document.querySelectorAll(".prose.plain")) {
  answer.replaceChildren(renderAnswer(answer.textContent));
  answer.classList.remove("plain");
}
askBeforeLeaving(document.getElementById("transcript"), document.getElementById("link-dialog"));
