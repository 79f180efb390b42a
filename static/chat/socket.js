// One websocket to /v1/responses: opened when first needed, opened again with back-off when it is lost.

const FIRST_DELAY = 500;
const LONGEST_DELAY = 15000;
const RESTS = new Set([1001, 1009]); // closed by the server: long silent or open, or more was sent than it reads

/**
 * Tells: "state" (detail: "connecting", "open", "resting", "waiting" or "refused"), "message" (detail: the event), and
 * "lost" when a socket that was open is gone. `state` is the latest; `retryAt` is when the next try is due.
 */
export class ResponsesSocket extends EventTarget {
  #url;
  #refused;
  #socket = null;
  #failures = 0;
  #timer = 0;
  #waiting = [];
  state = "resting";
  retryAt = 0;

  /** `refused` is asked after a handshake that failed: it resolves to true when trying again can't help. */
  constructor(path, { refused }) {
    super();
    const url = new URL(path, location.href);
    url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
    this.#url = url;
    this.#refused = refused;
    window.addEventListener("online", () => this.state === "waiting" && this.connect());
  }

  /** Connect now, if there is no connection. */
  connect() {
    clearTimeout(this.#timer);
    if (this.#socket) return;
    this.#enter("connecting");
    const socket = new WebSocket(this.#url);
    this.#socket = socket;
    let wasOpen = false;
    socket.addEventListener("open", () => {
      wasOpen = true;
      this.#failures = 0;
      this.#enter("open");
      for (const text of this.#waiting.splice(0)) socket.send(text);
    });
    socket.addEventListener("message", (message) => this.#tell("message", JSON.parse(message.data)));
    socket.addEventListener("close", (event) => this.#closed(wasOpen, event.code));
  }

  /** Send a client event now, or as soon as there is a connection. */
  send(event) {
    const text = JSON.stringify(event);
    if (this.state === "open") this.#socket.send(text);
    else {
      this.#waiting.push(text);
      this.connect();
    }
  }

  /** Forget what waits to be sent. */
  forget() {
    this.#waiting = [];
  }

  async #closed(wasOpen, code) {
    this.#socket = null;
    if (wasOpen && RESTS.has(code)) {
      this.#enter("resting");
      return this.#tell("lost");
    }
    if (!wasOpen && (await this.#refused())) return this.#enter("refused");
    const delay = Math.min(FIRST_DELAY * 2 ** this.#failures, LONGEST_DELAY) * (0.75 + Math.random() / 2);
    this.#failures += 1;
    this.retryAt = Date.now() + delay;
    this.#timer = setTimeout(() => this.connect(), delay);
    this.#enter("waiting");
    if (wasOpen) this.#tell("lost"); // what is sent now waits for the next connection
  }

  #enter(state) {
    this.state = state;
    this.#tell("state", state);
  }

  #tell(name, detail) {
    this.dispatchEvent(new CustomEvent(name, { detail }));
  }
}
