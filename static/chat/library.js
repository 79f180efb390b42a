// Where conversations are kept: on the server where the tenant stores them, else in this browser alone.

import { Conversation } from "./conversation.js";

/** The database of this browser: conversations of one person in one tenant. */
class BrowserStore {
  #name;
  #database = null;

  constructor(name) {
    this.#name = name;
  }

  /** Run `work` on the table, and return what its request resolves to once it is written. */
  async #do(mode, work) {
    this.#database ??= new Promise((resolve, reject) => {
      const opening = indexedDB.open(this.#name, 1);
      opening.onupgradeneeded = () => opening.result.createObjectStore("conversations", { keyPath: "id" });
      opening.onsuccess = () => resolve(opening.result);
      opening.onerror = () => reject(opening.error);
    });
    const transaction = (await this.#database).transaction("conversations", mode);
    let answer;
    work(transaction.objectStore("conversations"), (result) => { answer = result; });
    return new Promise((resolve, reject) => {
      transaction.oncomplete = () => resolve(answer);
      transaction.onabort = () => reject(transaction.error);
    });
  }

  async list(query = "") {
    const all = await this.all();
    const words = query.toLowerCase().split(/\s+/).filter(Boolean);
    const has = ({ title, turns }, word) => [title, ...turns.map(({ content }) => content)].some((text) => text.toLowerCase().includes(word));
    return all.filter((one) => words.every((word) => has(one, word)))
      .sort((one, other) => other.changed_at.localeCompare(one.changed_at))
      .map(({ id, title, changed_at }) => ({ id, title, changed_at, is_shared: false }));
  }

  all() {
    return this.#do("readonly", (table, answer) => { table.getAll().onsuccess = (event) => answer(event.target.result); });
  }

  get(id) {
    return this.#do("readonly", (table, answer) => { table.get(id).onsuccess = (event) => answer(event.target.result ?? null); });
  }

  /** Store what changed the revision that is stored; otherwise answer what is. */
  put(stored) {
    return this.#do("readwrite", (table, answer) => {
      table.get(stored.id).onsuccess = ({ target: { result: there } }) => {
        if ((there?.revision ?? 0) !== stored.revision) return answer({ is_saved: false, conversation: there ?? null });
        const title = there?.title ?? stored.title;
        const saved = { ...stored, title, revision: stored.revision + 1, changed_at: new Date().toISOString() };
        table.put(saved);
        answer({ is_saved: true, title, revision: saved.revision });
      };
    });
  }

  change(id, { title }) {
    return this.#do("readwrite", (table) => {
      table.get(id).onsuccess = ({ target: { result: there } }) => { if (there) table.put({ ...there, title }); };
    });
  }

  remove(id) {
    return this.#do("readwrite", (table, answer) => {
      table.get(id).onsuccess = ({ target: { result: there } }) => answer(there ?? null);
      table.delete(id);
    });
  }

  /** Store it whatever is there. */
  keep(stored) {
    return this.#do("readwrite", (table) => table.put({ ...stored, changed_at: new Date().toISOString() }));
  }
}

/** The server's conversations, over the page's session. */
class ServerStore {
  #urls;
  #csrf;

  constructor(urls, csrf) {
    this.#urls = urls;
    this.#csrf = csrf;
  }

  async #ask(address, method = "GET", body) {
    const headers = { "x-csrftoken": this.#csrf, accept: "application/json", "content-type": "application/json" };
    const keepalive = document.visibilityState === "hidden" && body?.length < 60_000; // longer ones may not outlive the page
    const answer = await fetch(address, { method, headers, body, keepalive });
    if (answer.ok) return answer.json();
    const told = await answer.json().catch(() => null);
    throw Object.assign(new Error(told?.error?.message ?? `The server answered ${answer.status}.`), { status: answer.status });
  }

  #at(id) {
    return at(this.#urls.conversation, id);
  }

  async list(query = "") {
    const address = this.#urls.conversations;
    return (await this.#ask(query ? `${address}${address.includes("?") ? "&" : "?"}q=${encodeURIComponent(query)}` : address)).data;
  }

  async get(id) {
    return (await this.#ask(this.#at(id))).conversation;
  }

  put(stored) {
    return this.#ask(this.#at(stored.id), "PUT", JSON.stringify(stored));
  }

  change(id, changes) {
    return this.#ask(this.#at(id), "PATCH", JSON.stringify(changes));
  }

  async remove(id) {
    return (await this.#ask(this.#at(id), "DELETE").catch((error) => {
      if (error.status === 404) return { conversation: null }; // it never came there
      throw error;
    })).conversation;
  }
}

/** An address of the page's data with an id in it. */
export function at(address, id) {
  return address.replace(/0{8}-.*0{12}/, id);
}

/**
 * Conversations that are open here, saved one after the other as they change. What the server can't be sent is kept in
 * this browser and sent later. Tells "saved" (detail: the conversation), "changed" where another window changed it,
 * "gone" where another window deleted it, and "unsaved" (detail: {conversation, message}).
 */
export class Library extends EventTarget {
  #store;
  #unsent = null;
  #open = new Map();
  #saving = new Map(); // conversation → whether it has changed since

  /** `isMine` says of a turn whether this page makes it. */
  constructor(data, isMine) {
    super();
    const name = `sluice.chat.${data.user}.${data.tenant}`;
    this.isMine = isMine;
    this.canShare = data.is_stored;
    this.#store = data.is_stored ? new ServerStore(data.urls, data.csrf) : new BrowserStore(name);
    if (data.is_stored) this.#unsent = new BrowserStore(`${name}.unsent`);
  }

  list(query) {
    return this.#store.list(query);
  }

  /** Return the conversation, or null where there is none. */
  async open(id) {
    const known = this.#open.get(id);
    if (known) {
      await this.refresh(known);
      return known;
    }
    const stored = await this.#store.get(id);
    const unsent = await this.#unsent?.get(id).catch(() => null);
    if (!stored && !unsent) return null;
    const conversation = new Conversation(stored ?? { ...unsent, revision: 0 });
    if (stored && unsent) {
      conversation.merge({ ...stored, turns: unsent.turns });
      conversation.leaf = unsent.leaf;
    }
    return this.hold(conversation);
  }

  /** Keep one that is new, as the only one with its id. */
  hold(conversation) {
    if (!this.#open.has(conversation.id)) this.#open.set(conversation.id, conversation);
    return this.#open.get(conversation.id);
  }

  /** Take what other windows stored of it. */
  async refresh(conversation) {
    if (!conversation.revision || this.#saving.has(conversation)) return;
    const stored = await this.#store.get(conversation.id).catch(() => null);
    if (stored && stored.revision !== conversation.revision && conversation.merge(stored, this.isMine)) this.#tell("changed", conversation);
  }

  /** Save it, now or once it is saved that far. */
  async save(conversation) {
    if (this.#saving.has(conversation)) return this.#saving.set(conversation, true);
    do {
      this.#saving.set(conversation, false);
      try {
        if (await this.#put(conversation)) this.#tell("saved", conversation);
      } catch (error) {
        await this.#unsent?.keep(conversation.stored).catch(() => {});
        this.#tell("unsaved", { conversation, message: error.status < 500 ? error.message : "The server can’t be reached: it is kept in this browser, and saved later." });
        break;
      }
    } while (this.#saving.get(conversation));
    this.#saving.delete(conversation);
  }

  async #put(conversation) {
    for (;;) {
      const answer = await this.#store.put(conversation.stored);
      if (answer.is_saved) {
        conversation.revision = answer.revision;
        conversation.title = answer.title ?? conversation.title;
        await this.#unsent?.remove(conversation.id).catch(() => {});
        return true;
      }
      if (!answer.conversation) {
        this.#tell("gone", conversation);
        return false;
      }
      if (conversation.merge(answer.conversation, this.isMine)) this.#tell("changed", conversation);
    }
  }

  /** Send what could not be sent before. */
  async sendUnsent() {
    for (const unsent of (await this.#unsent?.all().catch(() => [])) ?? []) {
      if (!this.#open.has(unsent.id)) await this.open(unsent.id);
      const conversation = this.#open.get(unsent.id);
      if (conversation) await this.save(conversation);
    }
  }

  async rename(id, title) {
    await this.#store.change(id, { title });
    const known = this.#open.get(id);
    if (known) known.title = title;
  }

  async share(id, isShared) {
    await this.#store.change(id, { is_shared: isShared });
    const known = this.#open.get(id);
    if (known) known.isShared = isShared;
  }

  /** Delete it, and return what brings it back. */
  async remove(id) {
    const stored = await this.#store.remove(id);
    await this.#unsent?.remove(id).catch(() => {});
    const conversation = this.#open.get(id) ?? (stored && new Conversation(stored));
    this.#open.delete(id);
    return async () => {
      if (!conversation) return;
      conversation.revision = 0;
      this.hold(conversation);
      await this.save(conversation);
    };
  }

  #tell(name, detail) {
    this.dispatchEvent(new CustomEvent(name, { detail }));
  }
}

/** What is typed and not sent yet, by conversation, in this browser. */
export class Drafts {
  #prefix;

  constructor(data) {
    this.#prefix = `sluice.chat.draft.${data.user}.${data.tenant}.`;
  }

  get(id) {
    try {
      return JSON.parse(localStorage.getItem(this.#prefix + id)) ?? { text: "", files: [] };
    } catch {
      return { text: "", files: [] };
    }
  }

  put(id, text, files) {
    const key = this.#prefix + id;
    if (!text && !files.length) return localStorage.removeItem(key);
    const at = new Date().toISOString();
    try {
      localStorage.setItem(key, JSON.stringify({ text, files, at }));
    } catch { // no room for the files
      try {
        localStorage.setItem(key, JSON.stringify({ text, files: [], at }));
      } catch {
        localStorage.removeItem(key);
      }
    }
  }

  /** Return {id, title, changed_at} of all. */
  list() {
    return Object.keys(localStorage).filter((key) => key.startsWith(this.#prefix)).map((key) => {
      const id = key.slice(this.#prefix.length);
      const { text, files, at: changed_at } = this.get(id);
      return { id, title: text.trim().slice(0, 80) || files[0]?.name || "", changed_at: changed_at ?? "" };
    });
  }
}
