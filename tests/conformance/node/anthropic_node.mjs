// Anthropic's SDK for Node.js.
import Anthropic from "@anthropic-ai/sdk";
import { betaZodTool } from "@anthropic-ai/sdk/helpers/beta/zod";
import { z } from "zod";
import { CITIES, KEY, SAYS, URL, check, line, run } from "./lines.mjs";

const client = new Anthropic({ apiKey: KEY, baseURL: URL, maxRetries: 0 });
const HI = [{ role: "user", content: "Where is Oslo?" }];
const input_schema = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const TOOLS = [{ name: "weather", description: "The weather in a city.", input_schema }];

line("messages", async () => {
  const answer = await client.messages.create({ model: "talks", messages: HI, max_tokens: 64 });
  check([answer.content[0].text, answer.stop_reason], [SAYS, "end_turn"]);
});

line("messages, streamed, with its helper", async () => {
  const stream = client.messages.stream({ model: "talks", messages: HI, max_tokens: 64 });
  check(await stream.finalText(), SAYS);
});

line("messages: a tool loop of five calls", async () => {
  const messages = [...HI];
  const asked = [];
  let answer;
  for (let turn = 0; turn < 6; turn += 1) {
    answer = await client.messages.create({ model: "calls-five", messages, tools: TOOLS, max_tokens: 200 });
    messages.push({ role: "assistant", content: answer.content });
    const called = answer.content.filter((block) => block.type === "tool_use");
    asked.push(...called.map((block) => block.input.city));
    messages.push({
      role: "user",
      content: called.map((block) => ({ type: "tool_result", tool_use_id: block.id, content: "rain" })),
    });
  }
  check([answer.content[0].text, asked], ["It rains everywhere.", CITIES]);
});

line("messages: a tool loop by its tool runner, streamed", async () => {
  const asked = [];
  const weather = betaZodTool({
    name: "weather",
    description: "The weather in a city.",
    inputSchema: z.object({ city: z.string() }),
    run: ({ city }) => asked.push(city) && "rain",
  });
  const runner = client.beta.messages.toolRunner({
    model: "calls-five",
    messages: HI,
    tools: [weather],
    max_tokens: 200,
    stream: true,
  });
  let last;
  for await (const stream of runner) last = await stream.finalMessage();
  check([last.content[0].text, asked], ["It rains everywhere.", CITIES]);
});

line("messages: a call streamed", async () => {
  const stream = client.messages.stream({ model: "calls", messages: HI, tools: TOOLS, max_tokens: 200 });
  const answer = await stream.finalMessage();
  check([answer.content.at(-1).input, answer.stop_reason], [{ city: "Oslo" }, "tool_use"]);
});

line("messages: thinking", async () => {
  const stream = client.messages.stream({
    model: "thinks",
    messages: HI,
    max_tokens: 4000,
    thinking: { type: "enabled", budget_tokens: 1024 },
  });
  const answer = await stream.finalMessage();
  check([answer.content[0].thinking, answer.content[1].text], ["Where is it?", SAYS]);
});

line("count_tokens", async () => {
  const found = await client.messages.countTokens({ model: "talks", messages: HI });
  check(found.input_tokens > 0, true);
});

line("models: listed", async () => {
  const names = [];
  for await (const model of client.models.list()) names.push(model.id);
  check(names.includes("talks"), true);
});

line("errors are the SDK's own", async () => {
  const caught = await client.messages.create({ model: "nothing", messages: HI, max_tokens: 8 }).catch((e) => e);
  check([caught.constructor.name, caught.error.error.type], ["NotFoundError", "not_found_error"]);
});

await run();
