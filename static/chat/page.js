// The chat page: what is typed goes over the socket, what comes back goes into the transcript and the library.

import { Answers, requestSize } from "./answers.js";
import { Attachments } from "./attachments.js";
import { curl, python } from "./code.js";
import { contentOf, Conversation, isOpen } from "./conversation.js";
import { copy, el, sends } from "./dom.js";
import { Estimate } from "./estimate.js";
import { History } from "./history.js";
import { Drafts, Library } from "./library.js";
import { askBeforeLeaving } from "./links.js";
import { credits } from "./numbers.js";
import { Settings } from "./settings.js";
import { showConnection } from "./connection.js";
import { Transcript } from "./transcript.js";

const SAVED_EACH = 2000; // milliseconds between two savings of an answer that nobody else could go on with
const NOTICE = 30_000; // milliseconds that an offer to undo stays

const $ = (id) => document.getElementById(id);
const data = JSON.parse($("chat-data").textContent);
const answers = new Answers(data);
const library = new Library(data, (turn) => answers.has(turn));
const drafts = new Drafts(data);
const settings = new Settings(data);
const estimate = new Estimate(data, $("estimate"), $("gauge"));
const attachments = new Attachments({
  list: $("attachments"), button: $("attach"), input: $("file"), area: $("message"), target: $("composer"),
  bytes: data.message_bytes, sees: () => settings.asked.every((model) => settings.card(model)?.capabilities.vision),
});
const transcript = new Transcript($("transcript"), $("scroller"), $("to-latest"), {
  ask: (text) => ask({ content: text }),
  draft(text) {
    const area = $("message");
    area.focus();
    area.select();
    if (!document.execCommand("insertText", false, text)) area.value = text; // so that what was typed can be undone
    area.setSelectionRange(0, 0);
    area.scrollTop = 0;
    typed();
  },
  regenerate: (answer) => request(answer.parent, [settings.model]),
  edit: (question, text) => ask({ content: text, files: question.files }, question.parent),
  proceed: () => ask({ content: "Continue." }),
  select(turn, name) {
    conversation.select(turn);
    show();
    transcript.focus(turn, name);
    keep();
  },
  pick(answer) {
    stop(); // the other one, if it still runs
    conversation.pick(answer);
    if (settings.card(answer.asked)) settings.take({ ...settings.kept, model: answer.asked });
    show();
    keep();
    $("message").focus();
  },
}, {
  models: data.models, samples: data.samples, urls: data.urls, isOperator: data.is_operator, account: readAccount,
  branches: (turn) => conversation.branches(turn),
});
const history = new History(library, drafts, data.urls, {
  open: (id) => { location.hash = id; },
  current: () => conversation.id,
  running: () => new Set([...answers.conversations].map(({ id }) => id)),
  changed: (id) => id === conversation.id && showTitle(),
  deleted(id, undo, title) {
    drafts.put(id, "", []);
    if (id === conversation.id) newChat();
    offer(`“${title}” is deleted.`, "Undo", async () => {
      await undo();
      await open(id);
    });
  },
  problem: (text) => tell(text),
});
let conversation = new Conversation();
let savedAt = 0;

// -- asking -------------------------------------------------------------------------------------------------------

const isBusy = () => answers.of(conversation).length > 0;

/** Ask `question` behind the turn `parent`, or behind the branch that is seen. */
function ask(question, parent = conversation.leaf) {
  if (isBusy() || !contentOf(question).length || !data.models.length) return false;
  library.hold(conversation);
  const turn = conversation.add("user", parent, { content: question.content, ...(question.files?.length ? { files: question.files } : {}) });
  request(turn.id, settings.asked);
  return true;
}

/** Ask these models for an answer to the turn `parent`. */
function request(parent, models) {
  if (isBusy()) return;
  const pair = models.length > 1 ? { pair: crypto.randomUUID() } : {};
  const turns = models.map((model) => conversation.add("assistant", parent, { asked: model, project: settings.project, ...pair }));
  conversation.leaf = turns[0].id;
  conversation.settings = settings.kept;
  showAddress();
  show();
  keep();
  for (const turn of turns) answers.ask(conversation, turn, settings);
  showBusy();
  $("message").focus();
}

function stop() {
  for (const turn of answers.of(conversation)) answers.stop(turn);
}

/** Save the conversation, which has changed. */
function keep(changed = conversation) {
  savedAt = performance.now();
  return library.save(changed);
}

// -- answers ------------------------------------------------------------------------------------------------------

answers.addEventListener("begun", ({ detail: { conversation: whose, turn } }) => {
  keep(whose);
  if (whose === conversation) transcript.grow(turn);
});
answers.addEventListener("grown", ({ detail: { conversation: whose, turn } }) => {
  if (!data.is_stored && performance.now() - savedAt > SAVED_EACH) keep(whose);
  if (whose !== conversation) return;
  if (turn.content && $("live").dataset.turn !== turn.id) say("Answer started.", turn);
  transcript.grow(turn);
});
answers.addEventListener("ended", ({ detail: { conversation: whose, turn } }) => {
  keep(whose);
  if (typeof turn.account?.available_micro === "number") showBalance(turn.account.available_micro);
  else readAccount().catch(() => {}); // a balance that can't be read now is read after the next answer
  if (whose !== conversation) return;
  transcript.end(turn);
  showBusy();
  showEstimate();
  const saying = { done: "Answer finished.", stopped: "Answer stopped.", credit: "Credit is used up.", length: "Answer reached its limit." };
  say(saying[turn.state] ?? "The answer failed.");
  if (document.activeElement === document.body) $("message").focus();
});
answers.addEventListener("state", () => showConnection($("connection"), answers.socket, data.urls.sign_in));

library.addEventListener("saved", ({ detail }) => {
  if (detail === conversation) {
    showTitle();
    unsaved.hidden = true;
  }
  history.saved(detail);
});
library.addEventListener("changed", ({ detail }) => {
  if (detail !== conversation) return;
  goOn(({ response }) => response); // another window asks for the others, and will say what came of them
  transcript.clear();
  show();
});
library.addEventListener("gone", ({ detail }) => {
  if (detail !== conversation) return;
  offer("This conversation was deleted in another window.", "Keep it", () => {
    detail.revision = 0;
    keep(detail);
  });
});
const unsaved = $("unsaved");
library.addEventListener("unsaved", ({ detail: { conversation: whose, message } }) => {
  if (whose !== conversation) return;
  unsaved.hidden = false;
  unsaved.textContent = `Not saved. ${message}`;
});
addEventListener("online", () => library.sendUnsent());

// -- the conversation that is open --------------------------------------------------------------------------------

/** Open the conversation, if there is one by this id; otherwise a new one that has it, for a draft. */
async function open(id, isNew = false) {
  if (id === conversation.id && conversation.turns.length) return;
  let found = null;
  try {
    found = await library.open(id);
  } catch (error) {
    tell(`The conversation can’t be read: ${error.message}`);
  }
  enter(found ?? new Conversation({ id }));
  if (!found && !isNew && !drafts.get(id).text && !drafts.get(id).files.length) tell("This conversation isn’t there any more.");
}

function enter(next) {
  conversation = next;
  showAddress();
  unsaved.hidden = true;
  const draft = drafts.get(next.id);
  $("message").value = draft.text;
  attachments.set(draft.files);
  if (next.turns.length) settings.take(next.settings);
  goOn();
  transcript.clear();
  show();
  fit();
  showEstimate();
  history.show();
  $("message").focus();
}

/** Have the address lead back here, once there is something to come back to. */
function showAddress() {
  const hash = conversation.turns.length || hasDraft(conversation.id) ? `#${conversation.id}` : "";
  if (location.hash !== hash) window.history.replaceState(null, "", location.pathname + location.search + hash);
}

/** Go on with answers that were being made when the conversation was left. */
function goOn(which = () => true) {
  for (const turn of conversation.turns) if (isOpen(turn) && !answers.has(turn) && which(turn)) answers.resume(conversation, turn);
}

function show() {
  transcript.show(conversation.seen, conversation.compared);
  showTitle();
  showBusy();
}

function showTitle() {
  document.title = `${conversation.title || "Chat"} · Sluice`;
  $("more").classList.toggle("narrow-only", !conversation.revision); // nothing to rename yet
}

function newChat() {
  if (location.hash) window.history.pushState(null, "", location.pathname + location.search); // the way back stays
  enter(new Conversation());
}

function hasDraft(id) {
  const { text, files } = drafts.get(id);
  return Boolean(text || files.length);
}

// -- what is left -------------------------------------------------------------------------------------------------

async function readAccount() {
  const answer = await fetch(data.urls.account);
  if (!answer.ok) throw new Error(`account: ${answer.status}`);
  const account = await answer.json();
  showBalance(account.available_micro);
  return account;
}

function showBalance(micro) {
  const place = $("balance");
  if (!place) return;
  place.textContent = credits(micro);
  place.closest("a").title = `${(micro / 1e6).toFixed(6)} credits`;
  place.closest("a").classList.toggle("low", micro <= 0);
}

// -- the page -----------------------------------------------------------------------------------------------------

function showBusy() {
  const busy = isBusy();
  $("send").hidden = busy;
  $("stop").hidden = !busy;
  document.querySelector("main").toggleAttribute("data-busy", busy);
}

function say(text, turn) {
  $("live").textContent = text;
  $("live").dataset.turn = turn?.id ?? "";
}

/** Say something above the composer, until the next or until it is closed. */
function tell(text, ...more) {
  const close = el("button", { type: "button", class: "link" }, "Close");
  close.addEventListener("click", () => { $("notice").hidden = true; });
  $("notice").replaceChildren(el("span", {}, text), ...more, close);
  $("notice").hidden = false;
}

function offer(text, name, act) {
  const button = el("button", { type: "button", class: "link" }, name);
  button.addEventListener("click", () => {
    $("notice").hidden = true;
    act();
  });
  tell(text, button);
  setTimeout(() => { if (button.isConnected) $("notice").hidden = true; }, NOTICE);
}

const written = () => ({ content: $("message").value.trim(), files: attachments.files });

/** What is written has changed. */
function typed() {
  drafts.put(conversation.id, $("message").value, attachments.files);
  showAddress();
  fit();
  showEstimate();
}

function fit() {
  const area = $("message");
  area.style.height = "auto";
  area.style.height = `${Math.min(area.scrollHeight, innerHeight * 0.4)}px`;
  $("send").disabled = !contentOf(written()).length || !data.models.length;
}

function showEstimate() {
  estimate.show(conversation, written(), settings);
}

$("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  const question = written();
  if (question.files.some(({ image }) => image) && !settings.asked.every((model) => settings.card(model)?.capabilities.vision)) {
    return tell("The message has an image, and the model that is picked sees none: pick one whose card says “sees images”, or remove it.");
  }
  if (question.files.length && requestSize(conversation, question, settings) > data.message_bytes) {
    return tell("The message and its conversation are more than one request may be: remove a file, or begin a new chat.");
  }
  if (!ask(question)) return;
  $("message").value = "";
  attachments.set([]);
  typed();
});
$("message").addEventListener("input", typed);
$("message").addEventListener("keydown", (event) => {
  if (!sends(event)) return;
  event.preventDefault();
  $("composer").requestSubmit();
});
attachments.addEventListener("change", typed);
attachments.addEventListener("problem", ({ detail }) => tell(detail));
settings.addEventListener("change", showEstimate);
$("stop").addEventListener("click", () => {
  stop();
  $("message").focus();
});
$("new-chat").addEventListener("click", newChat);
$("more").addEventListener("click", () => {
  const { id, title, isShared, revision } = conversation;
  history.menu(revision ? history.line(id) ?? { id, title, is_shared: isShared } : { id, isNew: true }, $("more"));
});

function showSettings(isShown) {
  $("settings").hidden = !isShown;
  $("show-settings").setAttribute("aria-expanded", String(isShown));
  $(isShown ? "system" : "show-settings").focus();
}
$("show-settings").addEventListener("click", () => showSettings($("settings").hidden));
$("hide-settings").addEventListener("click", () => showSettings(false));

function showCode(language) {
  const asked = { model: settings.model, input: conversation.input(), settings };
  const content = contentOf(written());
  if (asked.input.at(-1)?.role === "assistant") asked.input.push({ role: "user", content: content.length ? content : "…" });
  else if (content.length) asked.input.push({ role: "user", content });
  $("code").textContent = (language === "python" ? python : curl)(asked, data.urls.base);
  for (const tab of document.querySelectorAll("[data-language]")) tab.setAttribute("aria-pressed", String(tab.dataset.language === language));
}
$("show-code").addEventListener("click", () => {
  showCode("curl");
  $("code-dialog").showModal();
});
for (const tab of document.querySelectorAll("[data-language]")) tab.addEventListener("click", () => showCode(tab.dataset.language));
$("copy-code").addEventListener("click", (event) => copy($("code").textContent, event.currentTarget));
$("show-shortcuts").addEventListener("click", () => $("shortcuts-dialog").showModal());

document.addEventListener("keydown", (event) => {
  const isControl = event.ctrlKey || event.metaKey;
  if (event.key === "Escape" && event.shiftKey) $("message").focus();
  else if (event.key === "Escape" && !document.querySelector("dialog[open], :popover-open, form.edit")) stop();
  else if (isControl && event.shiftKey && event.code === "KeyO") newChat();
  else if (isControl && event.shiftKey && event.code === "KeyH") history.toggle();
  else if (isControl && event.shiftKey && event.code === "Semicolon") copy(transcript.lastCode(), $("live"));
  else if (isControl && event.key === "/") $("shortcuts-dialog").showModal();
  else return;
  if (isControl) event.preventDefault();
});
addEventListener("hashchange", () => (location.hash.length > 1 ? open(location.hash.slice(1)) : enter(new Conversation())));
addEventListener("visibilitychange", () => {
  if (document.visibilityState === "visible") {
    library.refresh(conversation);
    history.load();
  } else if (!data.is_stored) for (const one of answers.conversations) keep(one);
});
addEventListener("resize", fit);

askBeforeLeaving($("transcript"), $("link-dialog"));
showBalance(data.account.available_micro);
if (/^#[0-9a-f-]{36}$/.test(location.hash)) await open(location.hash.slice(1));
else enter(conversation);
if (data.models.length) answers.socket.connect();
history.load();
library.sendUnsent();
