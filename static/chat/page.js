// The chat page: what is typed goes over the socket, what comes back goes into the transcript.

import { curl, python } from "./code.js";
import { Conversation } from "./conversation.js";
import { copy, sends } from "./dom.js";
import { requestOf } from "./faults.js";
import { askBeforeLeaving } from "./links.js";
import { credits } from "./numbers.js";
import { Settings } from "./settings.js";
import { showConnection } from "./connection.js";
import { ResponsesSocket } from "./socket.js";
import { Transcript } from "./transcript.js";

/** What is said of an answer that can't be gone on with. */
const GONE = new Set(["response_not_found", "answer_lost", "answer_abandoned"]);

const $ = (id) => document.getElementById(id);
const data = JSON.parse($("chat-data").textContent);
const conversation = new Conversation(`${data.user}.${data.tenant}`);
const settings = new Settings(data);
const socket = new ResponsesSocket("/v1/responses", { refused: isRefused });
const transcript = new Transcript($("transcript"), $("scroller"), $("to-latest"), {
  ask,
  draft(text) {
    const area = $("message");
    area.focus();
    area.select();
    if (!document.execCommand("insertText", false, text)) area.value = text; // so that what was typed can be undone
    area.setSelectionRange(0, 0);
    area.scrollTop = 0;
    fit();
  },
  regenerate(answer) {
    if (running) return;
    conversation.cut(answer);
    request();
  },
  edit(question, text) {
    if (running) return;
    conversation.cut(question);
    ask(text);
  },
  proceed() {
    if (!running) ask("Continue.");
  },
}, { models: data.models, samples: data.samples, urls: data.urls, isOperator: data.is_operator, account: readAccount });
let running = conversation.unfinished; // the answer that is being made
let sentAt = 0; // when the running answer was asked for; 0 where that was before a reload
let isLeaving = false; // for a new chat, once the running answer has ended

// -- asking -------------------------------------------------------------------------------------------------------

function ask(text) {
  if (running || !text || !data.models.length) return;
  conversation.add("user", text);
  request();
}

/** Ask for an answer to the conversation as it stands. */
function request() {
  running = conversation.add("assistant");
  running.project = settings.project;
  conversation.save();
  transcript.show(conversation.turns);
  sentAt = performance.now();
  const event = {
    type: "response.create",
    model: settings.model,
    // Not as `instructions`, which a response says again: what is kept of it shall have no prompt.
    input: [...(settings.system ? [{ role: "system", content: settings.system }] : []), ...conversation.input(running)],
    ...(data.is_resumable ? { resumable: true } : {}),
    ...(settings.temperature === null ? {} : { temperature: settings.temperature }),
    ...(settings.maxOutput ? { max_output_tokens: settings.maxOutput } : {}),
    metadata: { sluice_project: running.project },
  };
  // A server that is sent more closes the connection, at times before it can say why.
  if (new Blob([JSON.stringify(event)]).size > data.message_bytes) {
    running.fault = { status: 413, code: "request_too_large" };
    return end("failed");
  }
  socket.send(event);
  showBusy();
  $("message").focus();
}

/** Go on with the running answer where it was. */
function resume() {
  socket.send({
    type: "response.resume",
    response_id: running.response,
    ...(running.number === undefined ? {} : { starting_after: running.number }),
    metadata: { sluice_project: running.project },
  });
}

function stop() {
  if (!running) return;
  if (socket.state === "open") socket.send({ type: "response.cancel", ...(running.response ? { response_id: running.response } : {}) });
  else {
    socket.forget();
    end("stopped");
  }
}

// -- answers ------------------------------------------------------------------------------------------------------

socket.addEventListener("message", ({ detail: event }) => {
  if (!running) return;
  if (event.sequence_number !== undefined) running.number = event.sequence_number;
  switch (event.type) {
    case "response.created":
      running.model = event.response.model;
      running.request = requestOf(event.response.id);
      if (data.is_resumable) running.response = event.response.id;
      conversation.save();
      transcript.grow(running);
      break;
    case "response.reasoning_text.delta":
      start();
      running.reasoning = (running.reasoning ?? "") + event.delta;
      transcript.grow(running);
      break;
    case "response.output_text.delta":
      start();
      running.content += event.delta;
      transcript.grow(running);
      break;
    case "sluice.usage":
      running.usage = event.usage;
      transcript.grow(running);
      break;
    case "response.completed":
    case "response.incomplete":
    case "response.failed":
      take(event.response);
      break;
    case "error":
      if (GONE.has(event.error.code)) return end("lost");
      running.fault = { status: event.status, ...event.error };
      end("failed");
      break;
  }
});

/** Note the answer's first sign. */
function start() {
  if (running.state !== "waiting") return;
  running.state = "streaming";
  if (sentAt) running.first = performance.now() - sentAt;
  say("Answer started.");
}

/** Take the response's end. */
function take(response) {
  running.usage = response.usage;
  running.account = response.sluice;
  const { status, incomplete_details: details, error } = response;
  if (status === "failed") running.fault = { ...error, request_id: running.request };
  const cut = details?.sluice_reason === "credit_exhausted" ? "credit" : "length";
  end({ completed: "done", cancelled: "stopped", failed: "failed" }[status] ?? cut);
}

function end(state) {
  const turn = running;
  running = null;
  turn.state = state;
  delete turn.response;
  conversation.save();
  transcript.end(turn);
  showBusy();
  if (typeof turn.account?.available_micro === "number") showBalance(turn.account.available_micro);
  else readAccount().catch(() => {}); // a balance that can't be read now is read after the next answer
  say({ done: "Answer finished.", stopped: "Answer stopped.", credit: "Credit is used up.", length: "Answer reached its limit." }[state] ?? "The answer failed.");
  if (isLeaving) {
    isLeaving = false;
    newChat();
  }
  if (document.activeElement === document.body) $("message").focus();
}

socket.addEventListener("lost", () => {
  if (!running) return;
  if (running.response) resume(); // as soon as there is a connection again
  else end("lost");
});
socket.addEventListener("state", ({ detail: state }) => {
  showConnection($("connection"), socket, data.urls.sign_in);
  if (state === "refused" && running) {
    socket.forget();
    running.fault = { status: 401, code: "not_signed_in" };
    end("failed");
  }
});

/** Whether the handshake failed because we are not welcome, rather than because nobody is there. */
async function isRefused() {
  try {
    return [401, 403].includes((await fetch(data.urls.account)).status);
  } catch {
    return false;
  }
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
  $("send").hidden = Boolean(running);
  $("stop").hidden = !running;
  document.querySelector("main").toggleAttribute("data-busy", Boolean(running));
}

function say(text) {
  $("live").textContent = text;
}

function fit() {
  const area = $("message");
  area.style.height = "auto";
  area.style.height = `${Math.min(area.scrollHeight, innerHeight * 0.4)}px`;
  $("send").disabled = !area.value.trim() || !data.models.length;
}

function newChat() {
  if (running) {
    isLeaving = true; // `end` comes back here
    return stop();
  }
  conversation.clear();
  transcript.show(conversation.turns);
  $("message").focus();
}

$("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = $("message").value.trim();
  if (running || !text) return;
  $("message").value = "";
  fit();
  ask(text);
});
$("message").addEventListener("input", fit);
$("message").addEventListener("keydown", (event) => {
  if (!sends(event)) return;
  event.preventDefault();
  $("composer").requestSubmit();
});
$("stop").addEventListener("click", () => {
  stop();
  $("message").focus();
});
$("new-chat").addEventListener("click", newChat);

function showSettings(isShown) {
  $("settings").hidden = !isShown;
  $("show-settings").setAttribute("aria-expanded", String(isShown));
  $(isShown ? "system" : "show-settings").focus();
}
$("show-settings").addEventListener("click", () => showSettings($("settings").hidden));
$("hide-settings").addEventListener("click", () => showSettings(false));

function showCode(language) {
  const asked = { model: settings.model, input: conversation.input(), settings };
  if (asked.input.at(-1)?.role === "assistant") asked.input.push({ role: "user", content: $("message").value.trim() || "…" });
  else if ($("message").value.trim()) asked.input.push({ role: "user", content: $("message").value.trim() });
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
  else if (isControl && event.shiftKey && event.code === "Semicolon") copy(transcript.lastCode(), $("live"));
  else if (isControl && event.key === "/") $("shortcuts-dialog").showModal();
  else return;
  if (isControl) event.preventDefault();
});
addEventListener("pagehide", () => conversation.save());
addEventListener("resize", fit);

askBeforeLeaving($("transcript"), $("link-dialog"));
transcript.show(conversation.turns);
showBalance(data.account.available_micro);
showBusy();
fit();
if (running) resume();
else if (data.models.length) socket.connect();
$("message").focus();
