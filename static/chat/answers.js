// Answers that are being made, over one socket: each on a stream of its own, of any conversation that is open here.

import { contentOf } from "./conversation.js";
import { requestOf } from "./faults.js";
import { ResponsesSocket } from "./socket.js";

/** What is said of an answer that can't be gone on with. */
const GONE = new Set(["response_not_found", "answer_lost", "answer_abandoned"]);

/**
 * Tells "begun", "grown" and "ended" (detail: {conversation, turn}) and "state", when the socket's has changed. `data` is
 * the page's.
 */
export class Answers extends EventTarget {
  #data;
  #runs = new Map(); // turn id → {conversation, turn, sentAt}; sentAt is 0 where it was asked for before a reload
  socket;

  constructor(data) {
    super();
    this.#data = data;
    this.socket = new ResponsesSocket("/v1/responses", { refused: () => this.#isRefused() });
    this.socket.addEventListener("message", ({ detail }) => this.#take(detail));
    this.socket.addEventListener("lost", () => this.#lost());
    this.socket.addEventListener("state", ({ detail: state }) => {
      if (state === "refused") {
        this.socket.forget();
        for (const run of [...this.#runs.values()]) this.#fail(run, { status: 401, code: "not_signed_in" });
      }
      this.#tell("state", state);
    });
  }

  /** The answers of `conversation` that are being made. */
  of(conversation) {
    return [...this.#runs.values()].filter((run) => run.conversation === conversation).map(({ turn }) => turn);
  }

  has(turn) {
    return this.#runs.has(turn.id);
  }

  /** Conversations in which answers are being made. */
  get conversations() {
    return new Set([...this.#runs.values()].map(({ conversation }) => conversation));
  }

  /** Ask for the answer `turn`, which is new, with these settings. */
  ask(conversation, turn, settings) {
    const run = this.#begin(conversation, turn, performance.now());
    const event = {
      type: "response.create",
      stream_id: turn.id,
      model: turn.asked,
      // Not as `instructions`, which a response says again: what is kept of it shall have no prompt.
      input: [...(settings.system ? [{ role: "system", content: settings.system }] : []), ...conversation.input(turn.parent)],
      ...(this.#data.is_stored ? { resumable: true } : {}),
      ...(settings.temperature === null ? {} : { temperature: settings.temperature }),
      ...(settings.maxOutput ? { max_output_tokens: settings.maxOutput } : {}),
      metadata: { sluice_project: turn.project },
    };
    // A server that is sent more closes the connection, at times before it can say why.
    if (sizeOf(event) > this.#data.message_bytes) return this.#fail(run, { status: 413, code: "request_too_large" });
    this.socket.send(event);
  }

  /** Go on with an answer that was left, from the last event that was taken. */
  resume(conversation, turn) {
    if (this.#runs.has(turn.id)) return;
    const run = this.#begin(conversation, turn, 0);
    if (turn.response) this.#resume(run);
    else this.#end(run, "lost");
  }

  stop(turn) {
    const run = this.#runs.get(turn.id);
    if (!run) return;
    if (this.socket.state === "open") this.socket.send({ type: "response.cancel", ...(turn.response ? { response_id: turn.response } : { stream_id: turn.id }) });
    else {
      this.socket.forget();
      this.#end(run, "stopped");
    }
  }

  #begin(conversation, turn, sentAt) {
    const run = { conversation, turn, sentAt };
    this.#runs.set(turn.id, run);
    return run;
  }

  #resume({ turn }) {
    this.socket.send({
      type: "response.resume",
      stream_id: turn.id,
      response_id: turn.response,
      ...(turn.number === undefined ? {} : { starting_after: turn.number }),
      metadata: { sluice_project: turn.project },
    });
  }

  #take(event) {
    const run = this.#runs.get(event.stream_id);
    if (!run) return;
    const { turn } = run;
    if (event.sequence_number !== undefined) turn.number = event.sequence_number;
    switch (event.type) {
      case "response.created":
        turn.model = event.response.model;
        turn.request = requestOf(event.response.id);
        if (this.#data.is_stored) turn.response = event.response.id;
        return this.#tell("begun", run);
      case "response.reasoning_text.delta":
        this.#start(run);
        turn.reasoning = (turn.reasoning ?? "") + event.delta;
        return this.#tell("grown", run);
      case "response.output_text.delta":
        this.#start(run);
        turn.content += event.delta;
        return this.#tell("grown", run);
      case "sluice.usage":
        turn.usage = event.usage;
        return this.#tell("grown", run);
      case "response.completed":
      case "response.incomplete":
      case "response.failed":
        return this.#finish(run, event.response);
      case "error":
        if (GONE.has(event.error.code)) return this.#end(run, "lost");
        return this.#fail(run, { status: event.status, ...event.error });
    }
  }

  /** Note the answer's first sign. */
  #start({ turn, sentAt }) {
    if (turn.state !== "waiting") return;
    turn.state = "streaming";
    if (sentAt) turn.first = performance.now() - sentAt;
  }

  /** Take the response's end. */
  #finish(run, response) {
    const { turn } = run;
    turn.usage = response.usage;
    turn.account = response.sluice;
    const { status, incomplete_details: details, error } = response;
    if (status === "failed") turn.fault = { ...error, request_id: turn.request };
    const cut = details?.sluice_reason === "credit_exhausted" ? "credit" : "length";
    this.#end(run, { completed: "done", cancelled: "stopped", failed: "failed" }[status] ?? cut);
  }

  #fail(run, fault) {
    run.turn.fault = fault;
    this.#end(run, "failed");
  }

  #end(run, state) {
    this.#runs.delete(run.turn.id);
    run.turn.state = state;
    delete run.turn.response;
    this.#tell("ended", run);
  }

  #lost() {
    for (const run of [...this.#runs.values()]) {
      if (run.turn.response) this.#resume(run); // as soon as there is a connection again
      else this.#end(run, "lost");
    }
  }

  /** Whether the handshake failed because we are not welcome, rather than because nobody is there. */
  async #isRefused() {
    try {
      return [401, 403].includes((await fetch(this.#data.urls.account)).status);
    } catch {
      return false;
    }
  }

  #tell(name, detail) {
    this.dispatchEvent(new CustomEvent(name, { detail }));
  }
}

/** The bytes of a value as JSON. */
export function sizeOf(value) {
  return new Blob([JSON.stringify(value)]).size;
}

/** About how many bytes a request with these messages and this question has. */
export function requestSize(conversation, question, settings) {
  return sizeOf([...conversation.input(), { role: "user", content: contentOf(question) }, settings.system]) + 1024;
}
