// A conversation: a tree of turns, of which one branch is looked at. Nothing is taken out of it.

/** A turn that ended in one of these may be written to no more. */
export const ENDED = new Set(["done", "stopped", "length", "credit", "failed", "lost"]);

/** Whether `turn` is an answer that is still made, or was when the page was left. */
export const isOpen = (turn) => turn?.role === "assistant" && !ENDED.has(turn.state);

/**
 * Turns are plain objects: {id, parent, role: "user", content, files} and {id, parent, role: "assistant", content, state,
 * …} where `state` is "waiting", "streaming" or one of ENDED; `reasoning`, `usage`, `account`, `model`, `request`,
 * `fault` come with the answer. `response` is its id, `number` that of the last event taken, `project` the one that is
 * charged, `asked` the model that was asked for. Answers with the same `pair` are compared. Of a user's turn `files` are
 * {name, text} or {name, image}. Each turn stands behind its parent in `turns`; those with one parent are branches.
 */
export class Conversation {
  id;
  title = "";
  revision = 0; // of what is stored
  turns = [];
  leaf = null; // the id of the branch's last turn
  settings = {};
  isShared = false;

  constructor(stored = { id: crypto.randomUUID() }) {
    this.id = stored.id;
    this.title = stored.title ?? "";
    this.revision = stored.revision ?? 0;
    this.turns = stored.turns ?? [];
    this.leaf = stored.leaf ?? null;
    this.settings = stored.settings ?? {};
    this.isShared = Boolean(stored.is_shared);
  }

  /** What is stored, and comes back into the constructor. */
  get stored() {
    const { id, title, revision, turns, leaf, settings } = this;
    return { id, title, revision, turns, leaf, settings };
  }

  find(id) {
    return this.turns.find((turn) => turn.id === id);
  }

  /** The turns of the branch that ends at `leaf`, the first one first. */
  path(leaf = this.leaf) {
    const path = [];
    for (let turn = this.find(leaf); turn; turn = this.find(turn.parent)) path.unshift(turn);
    return path;
  }

  /** The answers that are compared at the branch's end, if they are. */
  get compared() {
    const last = this.find(this.leaf);
    return last?.pair ? this.turns.filter(({ pair }) => pair === last.pair) : [];
  }

  /** What is to be seen: the branch, at its end all answers that are compared. */
  get seen() {
    const compared = this.compared;
    return compared.length ? [...this.path(compared[0].parent), ...compared] : this.path();
  }

  /** Append a turn behind `parent`, look at its branch, and return it. */
  add(role, parent, more = {}) {
    const turn = { id: crypto.randomUUID(), parent, role, content: "", ...(role === "assistant" ? { state: "waiting" } : {}), ...more };
    this.turns.push(turn);
    this.leaf = turn.id;
    if (!this.title) this.title = (turn.content || turn.files?.[0]?.name || "").trim().replace(/\s+/g, " ").slice(0, 80);
    return turn;
  }

  /** All branches at `turn`, itself among them. */
  branches(turn) {
    return this.turns.filter(({ parent, role }) => parent === turn.parent && role === turn.role);
  }

  /** Look at the branch `turn`, as far as it goes. */
  select(turn) {
    let last = turn;
    for (let next = turn; next; next = this.turns.findLast(({ parent }) => parent === last.id)) last = next;
    this.leaf = last.id;
  }

  /** Go on with `answer` of those that were compared; the others stay as branches. */
  pick(answer) {
    for (const turn of this.compared) delete turn.pair;
    this.leaf = answer.id;
  }

  /** The messages of the branch up to `leaf`: what a request sends as its input. Answers without text are left out. */
  input(leaf = this.leaf) {
    return this.path(leaf).map((turn) => ({ role: turn.role, content: contentOf(turn) })).filter(({ content }) => content.length);
  }

  /** Take what another window stored meanwhile, and return whether that changed anything here. */
  merge(stored, isMine = () => false) {
    let isChanged = false;
    this.revision = stored.revision;
    this.isShared = Boolean(stored.is_shared);
    this.title = stored.title;
    for (const theirs of stored.turns) {
      const ours = this.find(theirs.id);
      if (!ours) this.turns.push(theirs);
      else if (!isMine(ours) && ENDED.has(theirs.state) && (isOpen(ours) || ours.state === "lost") && theirs.state !== ours.state) Object.assign(ours, theirs);
      else continue;
      isChanged = true;
    }
    return isChanged;
  }
}

/** The content of `turn` as a request has it: text with the text files behind it, and images where there are some. */
export function contentOf({ content, files = [] }) {
  const texts = files.filter((file) => file.text !== undefined).map(({ name, text }) => {
    const fence = "`".repeat(Math.max(3, ...[...text.matchAll(/`+/g)].map(([run]) => run.length + 1)));
    return `${name}:\n${fence}\n${text.replace(/\n$/, "")}\n${fence}`;
  });
  const whole = [content, ...texts].filter(Boolean).join("\n\n");
  const images = files.filter(({ image }) => image).map(({ image }) => ({ type: "input_image", image_url: image }));
  return images.length ? [...(whole ? [{ type: "input_text", text: whole }] : []), ...images] : whole;
}

/** The branch as Markdown. */
export function asMarkdown(conversation) {
  const parts = conversation.seen.map((turn) => {
    const content = contentOf(turn);
    const text = typeof content === "string" ? content : content.map((part) => part.text ?? "[image]").join("\n\n");
    return `## ${turn.role === "user" ? "You" : turn.model ?? "Answer"}\n\n${text}\n`;
  });
  return `# ${conversation.title}\n\n${parts.join("\n")}`;
}
