// The banner that says that the connection is lost, and when it is tried again.

import { el } from "./dom.js";

let ticking = 0;

/** Show in `banner` what `socket` is doing, or hide it while all is well. */
export function showConnection(banner, socket, signIn) {
  clearInterval(ticking);
  const isTrying = socket.state === "waiting" || (socket.state === "connecting" && !banner.hidden);
  banner.hidden = !isTrying && socket.state !== "refused";
  if (socket.state === "refused") {
    banner.replaceChildren("Your session has ended. ", el("a", { href: signIn }, "Sign in again"), "; what you wrote stays here.");
    return;
  }
  if (socket.state !== "waiting") return;
  const seconds = el("span", { "aria-hidden": "true" });
  const now = el("button", { type: "button", class: "link" }, "Try now");
  now.addEventListener("click", () => socket.connect());
  banner.replaceChildren("The connection is lost; reconnecting", seconds, ". ", now);
  const tick = () => { seconds.textContent = ` in ${Math.max(Math.ceil((socket.retryAt - Date.now()) / 1000), 1)} s`; };
  tick();
  ticking = setInterval(tick, 1000);
}
