// What an answer used and cost, while it streams and afterwards.

import { el } from "./dom.js";
import { count, credits, time } from "./numbers.js";

/** Return the parts of the meter of an answer as [name, text]; what isn't known yet is left out. */
export function readings(turn) {
  const parts = [];
  const { usage, account } = turn;
  if (usage) {
    const cached = usage.input_tokens_details?.cached_tokens ?? 0;
    parts.push(["input", `${count(usage.input_tokens)} in`]);
    if (cached) parts.push(["cached", `${count(cached)} cached`]);
    parts.push(["output", `${count(usage.output_tokens)} out`]);
    parts.push(["credits", cost(usage, account)]);
  }
  const first = account?.ttft_ms ?? turn.first;
  if (first !== undefined && first !== null) parts.push(["ttft", `TTFT ${time(first)}`]);
  const seconds = account ? (account.duration_ms - account.ttft_ms) / 1000 : 0;
  if (seconds > 0.001 && usage?.output_tokens > 1) {
    const rate = (usage.output_tokens - 1) / seconds;
    parts.push(["rate", `${rate < 10 ? rate.toFixed(1) : Math.round(rate)} tokens/s`]);
  }
  return parts;
}

/** What an answer costs, in words where it is no number. */
function cost(usage, account) {
  if (account?.waived) return "waived";
  return usage.credits_micro === null ? "charge pending" : `${credits(usage.credits_micro)} credits`;
}

const TITLES = {
  ttft: "Time to first token",
  waived: "It failed on our side before anything of it reached you, so it costs nothing.",
  "charge pending": "The charge isn’t settled yet: the request’s page will tell it.",
};

/** Show the readings of `turn` in `container`. */
export function showMeter(container, turn) {
  const parts = readings(turn).map(([name, text]) =>
    el("span", { "data-reading": name, title: TITLES[name] ?? TITLES[text] ?? null }, text));
  if (turn.model) parts.unshift(el("span", { class: "model" }, turn.model));
  container.replaceChildren(...parts);
}

const STEPS = {
  field: "Request’s task field",
  endpoint: "Endpoint",
  alias: "Name of the model",
  structure: "What the request has",
  instruction: "What its instruction asks for",
  examples: "Nearest example",
  plan: "Plan’s default",
  conversation: "Conversation",
  ceiling: "Ceiling",
  adapter: "Adapters that are refused",
};

/** Return how near the text came to each rule's examples, or nothing. */
function nearest(similarities) {
  if (!similarities?.length) return null;
  const told = similarities.map(({ rule, similarity }) => `${rule} ${(similarity * 100).toFixed(1)} %`);
  return el("div", { class: "muted" }, `By rule: ${told.join(" · ")}`);
}

/** Return what the rule held the answer to: one of so many labels, fields, or JSON; empty where it was free. */
function held(to) {
  if (!to) return "";
  if (to === "json_schema") return "the answer was held to JSON with the fields that it names";
  return typeof to === "number" ? `the answer was held to one of ${count(to)} labels` : "the answer was held to JSON";
}

/** Return "Why this model?": the route's explanation with the candidates that were passed over. */
export function routeDetails(route) {
  const chosen = (candidate) => !candidate.rejected;
  const rows = (route.candidates ?? []).map((candidate) =>
    el(
      "li",
      { class: chosen(candidate) ? "chosen" : "passed" },
      el("strong", {}, candidate.model),
      candidate.deployment && candidate.deployment !== candidate.model ? ` on ${candidate.deployment}` : "",
      chosen(candidate) ? " · chosen" : ` · passed over: ${candidate.rejected}`,
    ),
  );
  const facts = [`task ${route.task} (${(STEPS[route.task_source] ?? route.task_source).toLowerCase()})`, route.rule ? `rule “${route.rule}”` : "", held(route.held_to)];
  const steps = (route.signals ?? []).filter((signal) => signal.outcome !== "skipped").map((signal) =>
    el("li", { class: signal.outcome }, el("strong", {}, STEPS[signal.step] ?? signal.step), `: ${signal.value}`,
      el("span", { class: "muted" }, ` · ${signal.outcome}`), nearest(signal.similarities)));
  const details = el(
    "details",
    { class: "route" },
    el("summary", {}, "Why this model?"),
    el("div", { class: "route-body" },
      el("p", {}, route.reason),
      el("p", { class: "muted" }, facts.filter(Boolean).join(" · ")),
      steps.length ? el("ol", { class: "steps" }, ...steps) : null,
      rows.length ? el("ul", {}, ...rows) : null),
  );
  details.addEventListener("toggle", () => details.open && details.scrollIntoView({ block: "nearest" }));
  return details;
}
