// OpenAI's Agents SDK for Node.js, over Responses and over Chat.
import { Agent, OpenAIChatCompletionsModel, OpenAIResponsesModel, run as ask, setTracingDisabled, tool, user } from "@openai/agents";
import OpenAI from "openai";
import { z } from "zod";
import { BASE_URL, CITIES, KEY, SAYS, check, line, run } from "./lines.mjs";

setTracingDisabled(true);
const client = new OpenAI({ apiKey: KEY, baseURL: BASE_URL, maxRetries: 0 });
const MODELS = { Responses: OpenAIResponsesModel, Chat: OpenAIChatCompletionsModel };
const City = z.object({ name: z.string(), people: z.number() });

function weather(asked) {
  return tool({
    name: "weather",
    description: "The weather in a city.",
    parameters: z.object({ city: z.string() }),
    execute: ({ city }) => asked.push(city) && "rain",
  });
}

for (const [name, Model] of Object.entries(MODELS)) {
  const agent = (model, more) => new Agent({ name: "Guide", instructions: "Be brief.", model: new Model(client, model), ...more });

  line(`${name}: an answer`, async () => {
    check((await ask(agent("talks"), "Where is Oslo?")).finalOutput, SAYS);
  });

  line(`${name}: a tool loop of five calls`, async () => {
    const asked = [];
    const told = await ask(agent("calls-five", { tools: [weather(asked)] }), "How is the weather?");
    check([told.finalOutput, asked], ["It rains everywhere.", CITIES]);
  });

  line(`${name}: a tool loop of five calls, streamed`, async () => {
    const asked = [];
    const told = await ask(agent("calls-five", { tools: [weather(asked)] }), "How is the weather?", { stream: true });
    await told.completed;
    check([told.finalOutput, asked], ["It rains everywhere.", CITIES]);
  });

  line(`${name}: text and a call in one answer`, async () => {
    const told = await ask(agent("calls", { tools: [weather([])] }), "How is the weather?");
    check(told.finalOutput, "It rains in Oslo.");
  });

  line(`${name}: a handoff`, async () => {
    const geographer = agent("hands-over", { name: "geographer", handoffDescription: "Knows places." });
    const told = await ask(agent("hands-over", { handoffs: [geographer] }), "Where is Oslo?");
    check([told.finalOutput, told.lastAgent.name], [SAYS, "geographer"]);
  });

  line(`${name}: a schema of zod as output`, async () => {
    const told = await ask(agent("writes-json", { outputType: City }), "Oslo");
    check(told.finalOutput, { name: "Oslo", people: 7 });
  });

  for (const [how, stream] of [["", false], [", streamed", true]]) {
    line(`${name}: a second turn of the same conversation${how}`, async () => {
      for (const model of ["talks", "thinks"]) {
        const guide = agent(model);
        const first = await ask(guide, "Where is Oslo?", { stream });
        if (stream) await first.completed;
        check((await ask(guide, [...first.history, user("And Bergen?")])).finalOutput, SAYS);
      }
    });
  }
}

await run();
