// Vercel's AI SDK, with its provider for OpenAI (Responses by default), for OpenAI-compatible servers and for Anthropic.
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { Output, embedMany, generateObject, generateText, stepCountIs, streamObject, streamText, tool } from "ai";
import { z } from "zod";
import { BASE_URL, CITIES, KEY, SAYS, check, line, run } from "./lines.mjs";

globalThis.AI_SDK_LOG_WARNINGS = false;
const openai = createOpenAI({ apiKey: KEY, baseURL: BASE_URL });
const compatible = createOpenAICompatible({
  name: "sluice",
  apiKey: KEY,
  baseURL: BASE_URL,
  includeUsage: true,
  supportsStructuredOutputs: true,
});
const anthropic = createAnthropic({ apiKey: KEY, baseURL: BASE_URL });
const City = z.object({ name: z.string(), people: z.number() });
const OSLO = { name: "Oslo", people: 7 };
const PROVIDERS = [
  ["Responses", openai],
  ["Chat", openai.chat],
  ["compatible", compatible],
  ["Messages", anthropic],
];

function weather(asked) {
  return tool({
    description: "The weather in a city.",
    inputSchema: z.object({ city: z.string() }),
    execute: async ({ city }) => {
      asked.push(city);
      return "rain";
    },
  });
}

for (const [name, provider] of PROVIDERS) {
  const say = { maxRetries: 0 };

  line(`${name}: generateText`, async () => {
    const answer = await generateText({ ...say, model: provider("talks"), prompt: "Where is Oslo?" });
    check([answer.text, answer.finishReason, answer.usage.outputTokens], [SAYS, "stop", 5]);
  });

  line(`${name}: streamText`, async () => {
    const errors = [];
    const answer = streamText({
      ...say,
      model: provider("talks"),
      prompt: "Where is Oslo?",
      onError: ({ error }) => errors.push(error),
    });
    let text = "";
    for await (const piece of answer.textStream) text += piece;
    if (errors.length) throw errors[0];
    check([text, (await answer.usage).outputTokens], [SAYS, 5]);
  });

  line(`${name}: five calls of a tool in steps`, async () => {
    const asked = [];
    const answer = await generateText({
      ...say,
      model: provider("calls-five"),
      prompt: "How is the weather?",
      tools: { weather: weather(asked) },
      stopWhen: stepCountIs(10),
    });
    check([answer.text, asked, answer.steps.length], ["It rains everywhere.", CITIES, 6]);
  });

  line(`${name}: five calls of a tool in steps, streamed`, async () => {
    const asked = [];
    const errors = [];
    const answer = streamText({
      ...say,
      model: provider("calls-five"),
      prompt: "How is the weather?",
      tools: { weather: weather(asked) },
      stopWhen: stepCountIs(10),
      onError: ({ error }) => errors.push(error),
    });
    await answer.consumeStream();
    if (errors.length) throw errors[0];
    check([await answer.text, asked], ["It rains everywhere.", CITIES]);
  });

  line(`${name}: SmolLM2, five calls by a strict schema, in steps`, async () => {
    const asked = [];
    const inputSchema = z.object({ city: z.enum(CITIES), days: z.number().int().min(1).max(14) });
    await generateText({
      ...say,
      model: provider("smollm2-135m-instruct"),
      prompt: "How is the weather in Oslo and in Bergen?",
      tools: {
        weather: tool({
          description: "The weather in a city, for some days.",
          inputSchema,
          strict: true,
          execute: async (given) => asked.push(inputSchema.parse(given)) && "rain",
        }),
      },
      toolChoice: "required",
      maxOutputTokens: 100,
      stopWhen: stepCountIs(5),
      providerOptions: {
        openai: { parallelToolCalls: false },
        sluice: { parallel_tool_calls: false },
        anthropic: { disableParallelToolUse: true },
      },
    });
    if (asked.length < 5) throw new Error(`it called ${asked.length} times`);
  });

  line(`${name}: a second turn`, async () => {
    const messages = [{ role: "user", content: "Where is Oslo?" }];
    const first = await generateText({ ...say, model: provider("talks"), messages });
    messages.push(...first.response.messages, { role: "user", content: "And Bergen?" });
    const second = await generateText({ ...say, model: provider("talks"), messages });
    if (second.usage.inputTokens <= first.usage.inputTokens) throw new Error("the first turn is forgotten");
  });

  line(`${name}: a second turn after tools`, async () => {
    const messages = [{ role: "user", content: "How is the weather?" }];
    const more = { ...say, tools: { weather: weather([]) }, stopWhen: stepCountIs(3) };
    const first = await generateText({ ...more, model: provider("calls"), messages });
    messages.push(...first.response.messages, { role: "user", content: "Thanks." });
    check((await generateText({ ...more, model: provider("calls"), messages })).text, "It rains in Oslo.");
  });

  line(`${name}: generateObject`, async () => {
    const { object } = await generateObject({ ...say, model: provider("writes-json"), schema: City, prompt: "Oslo" });
    check(object, OSLO);
  });

  line(`${name}: streamObject`, async () => {
    const errors = [];
    const onError = ({ error }) => errors.push(error);
    const answer = streamObject({ ...say, model: provider("writes-json"), schema: City, prompt: "Oslo", onError });
    for await (const part of answer.partialObjectStream) void part;
    if (errors.length) throw errors[0];
    check(await answer.object, OSLO);
  });

  line(`${name}: tools, then an object`, async () => {
    const answer = await generateText({
      ...say,
      model: provider("calls-then-json"),
      prompt: "How is the weather?",
      tools: { weather: weather([]) },
      output: Output.object({ schema: City }),
      stopWhen: stepCountIs(5),
    });
    check(answer.output, OSLO);
  });
}

for (const [name, provider] of [PROVIDERS[2], PROVIDERS[3]]) {
  line(`${name}: reasoning apart from the text`, async () => {
    const answer = await generateText({ maxRetries: 0, model: provider("thinks"), prompt: "Where is Oslo?" });
    check([answer.text, answer.reasoningText], [SAYS, "Where is it?"]);
  });
}

line("Responses: a wish for a summary of the reasoning, which is left out", async () => {
  const answer = await generateText({
    maxRetries: 0,
    model: openai("thinks"),
    prompt: "Where is Oslo?",
    providerOptions: { openai: { forceReasoning: true, reasoningEffort: "low", reasoningSummary: "auto" } },
  });
  const left = (answer.response.headers["x-sluice-not-enforced"] ?? "").includes("reasoning.summary");
  check([answer.text, left], [SAYS, true]);
});

line("Responses: a second turn by previousResponseId", async () => {
  const first = await generateText({ maxRetries: 0, model: openai("talks"), prompt: "Where is Oslo?" });
  const second = await generateText({
    maxRetries: 0,
    model: openai("talks"),
    prompt: "And Bergen?",
    providerOptions: { openai: { previousResponseId: first.providerMetadata.openai.responseId } },
  });
  check(second.text, SAYS);
});

line("embedMany", async () => {
  const { embeddings } = await embedMany({ maxRetries: 0, model: openai.embedding("embeds"), values: ["Oslo", "Bergen"] });
  check(embeddings.map((one) => one.length), [64, 64]);
});

line("an error has its code", async () => {
  const caught = await generateText({ maxRetries: 0, model: openai("nothing"), prompt: "Hi" }).catch((e) => e);
  check([caught.statusCode, JSON.parse(caught.responseBody).error.code], [404, "model_not_found"]);
});

await run();
