// What went wrong, in words that say what to do.

const SAYINGS = {
  rate_limit_exceeded: ["Too many requests", "The plan’s limit for now is used up."],
  concurrency_limit_exceeded: ["Too many at once", "As many requests as the plan allows are running. Wait for one to end."],
  too_many_responses: ["Too many at once", "Wait for the running answer to end."],
  context_length_exceeded: [
    "The conversation is too long",
    "It no longer fits the model’s context. Begin a new chat, shorten a message, or pick a model with a longer context.",
  ],
  request_too_large: [
    "The conversation is too long",
    "It is more than one request may be. Begin a new chat, or shorten a message.",
  ],
  request_exceeds_burst: ["Too much for one request", "Lower “Max output tokens”, or shorten the conversation."],
  model_not_allowed: ["Not in your plan", null],
  model_not_found: ["The model is gone", "Pick another one."],
  no_route: ["No model for “auto”", "No rule says which model answers. Pick one by name, or ask your operator for a rule."],
  not_signed_in: ["Your session has ended", "Sign in again; what you wrote stays here."],
  not_a_member: ["No access", "You may no longer spend this project’s credit. Pick another project, or ask an owner."],
  no_ready_deployment: ["The model is not ready", "Nobody serves it right now. Wait a moment, or pick another model."],
};
const RETRIED = "Nothing more is charged for it. Try again.";
const WAIVED = "Nothing is charged for it: it failed on our side. Try again.";

/**
 * Return {title, text, retry} for a fault {status, code, message, headers}; `retry` says whether to offer it. `isWaived`
 * says that we broke the answer and charge nothing.
 */
export function explain(fault, isWaived = false) {
  const wait = Number(fault.headers?.["retry-after"]);
  const [title, text] = SAYINGS[fault.code] ?? [fault.status >= 500 || !fault.status ? "The answer failed" : "That was refused", null];
  const message = fault.message || "Something went wrong";
  const own = message[0].toUpperCase() + message.slice(1) + (/[.!?]$/.test(message) ? "" : ".");
  const parts = [text ?? own];
  if (wait) parts.push(`Try again in ${Math.ceil(wait)} s.`);
  else if (isWaived) parts.push(WAIVED);
  else if (!text && title === "The answer failed") parts.push(RETRIED);
  return { title, text: parts.join(" "), retry: fault.code !== "not_signed_in" };
}

/** Whether the fault is that credit is out. */
export function isOutOfCredit(fault) {
  return fault?.status === 402 || fault?.code === "credit_balance_exhausted";
}

/** Return the request's id, as error messages and pages know it, from a response's. */
export function requestOf(responseId) {
  const hex = responseId?.replace(/^resp_/, "") ?? "";
  return hex.length === 32 ? hex.replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, "$1-$2-$3-$4-$5") : "";
}
