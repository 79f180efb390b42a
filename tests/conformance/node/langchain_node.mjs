// LangChain for JavaScript, with its package for OpenAI and LangGraph's agent.
import { tool } from "@langchain/core/tools";
import { createReactAgent } from "@langchain/langgraph/prebuilt";
import { ChatOpenAI, OpenAI, OpenAIEmbeddings } from "@langchain/openai";
import { z } from "zod";
import { BASE_URL, CITIES, KEY, SAYS, check, line, run } from "./lines.mjs";

const configuration = { baseURL: BASE_URL };
const City = z.object({ name: z.string(), people: z.number() });
const OSLO = { name: "Oslo", people: 7 };
const PARTS = [
  ["Chat", (model) => new ChatOpenAI({ model, apiKey: KEY, configuration, maxRetries: 0 })],
  ["Responses", (model) => new ChatOpenAI({ model, apiKey: KEY, configuration, maxRetries: 0, useResponsesApi: true })],
];

function weather(asked) {
  return tool(({ city }) => asked.push(city) && "rain", {
    name: "weather",
    description: "The weather in a city.",
    schema: z.object({ city: z.string() }),
  });
}

for (const [name, made] of PARTS) {
  line(`${name}: invoke, with usage`, async () => {
    const answer = await made("talks").invoke("Where is Oslo?");
    check([answer.text, answer.usage_metadata.output_tokens], [SAYS, 5]);
  });

  line(`${name}: stream`, async () => {
    let text = "";
    for await (const piece of await made("talks").stream("Where is Oslo?")) text += piece.text;
    check(text, SAYS);
  });

  line(`${name}: bindTools, streamed`, async () => {
    let whole;
    for await (const piece of await made("calls").bindTools([weather([])]).stream("How is Oslo?")) {
      whole = whole ? whole.concat(piece) : piece;
    }
    check(whole.tool_calls.map((call) => call.args), [{ city: "Oslo" }]);
  });

  line(`${name}: an agent's loop of five calls`, async () => {
    const asked = [];
    const agent = createReactAgent({ llm: made("calls-five"), tools: [weather(asked)] });
    const told = await agent.invoke({ messages: [{ role: "user", content: "How is the weather?" }] });
    check([told.messages.at(-1).text, asked], ["It rains everywhere.", CITIES]);
  });

  line(`${name}: withStructuredOutput, by a schema`, async () => {
    check(await made("writes-json").withStructuredOutput(City, { method: "jsonSchema" }).invoke("Oslo"), OSLO);
  });

  line(`${name}: withStructuredOutput, by a function`, async () => {
    const model = made("calls-City").withStructuredOutput(City, { name: "City", method: "functionCalling" });
    check(await model.invoke("Oslo"), OSLO);
  });
}

line("completions", async () => {
  const model = new OpenAI({ model: "talks", apiKey: KEY, configuration, maxRetries: 0 });
  check(await model.invoke("Where is Oslo?"), SAYS);
});

line("embeddings", async () => {
  const made = new OpenAIEmbeddings({ model: "embeds", apiKey: KEY, configuration, maxRetries: 0 });
  check((await made.embedDocuments(["Oslo", "Bergen"])).map((one) => one.length), [64, 64]);
});

await run();
