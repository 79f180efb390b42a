// The conversation: turns of one browser tab, kept in its session storage and nowhere else.

const KEY = "sluice.chat.";

/** A turn that ended in one of these may be written to no more. */
export const ENDED = new Set(["done", "stopped", "length", "credit", "failed", "lost"]);

/**
 * Turns are plain objects: {id, role: "user", content} and {id, role: "assistant", content, state, …} where `state` is
 * "waiting", "streaming" or one of ENDED; `reasoning`, `usage`, `account`, `model`, `request`, `fault` come with the
 * answer. `response` is its id, `number` that of the last event taken, and `project` the one that is charged.
 */
export class Conversation {
  #key;
  turns = [];

  /** `name` tells the conversations of different tenants and users apart. */
  constructor(name) {
    this.#key = KEY + name;
    try {
      this.turns = JSON.parse(sessionStorage.getItem(this.#key) ?? "[]");
    } catch {
      this.turns = [];
    }
    for (const turn of this.turns) {
      if (turn.role === "assistant" && !ENDED.has(turn.state) && !turn.response) turn.state = "lost"; // nothing to go on with
    }
  }

  /** The answer that was being made when the page was left, if there is one. */
  get unfinished() {
    const last = this.turns.at(-1);
    return last?.role === "assistant" && !ENDED.has(last.state) ? last : null;
  }

  /** Append a turn and return it. */
  add(role, content = "") {
    const turn = { id: crypto.randomUUID(), role, content, ...(role === "assistant" ? { state: "waiting" } : {}) };
    this.turns.push(turn);
    return turn;
  }

  /** Forget `turn` and all after it. */
  cut(turn) {
    this.turns.length = Math.max(this.turns.indexOf(turn), 0);
  }

  /** Forget everything. */
  clear() {
    this.turns.length = 0;
    this.save();
  }

  /** The messages before `turn`, or all: what a request sends as its input. Answers without text are left out. */
  input(turn) {
    const end = turn ? this.turns.indexOf(turn) : this.turns.length;
    return this.turns.slice(0, end).filter(({ content }) => content).map(({ role, content }) => ({ role, content }));
  }

  /** The question that `answer` answers. */
  questionOf(answer) {
    return this.turns.slice(0, this.turns.indexOf(answer)).findLast(({ role }) => role === "user");
  }

  /** Keep the turns for a reload; where the tab has no room for them, they last as long as the page. */
  save() {
    try {
      sessionStorage.setItem(this.#key, JSON.stringify(this.turns));
    } catch {
      sessionStorage.removeItem(this.#key);
    }
  }
}
