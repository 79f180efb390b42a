// OpenAI's SDK for Node.js.
import OpenAI, { toFile } from "openai";
import { zodFunction, zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { ResponsesWS } from "openai/resources/responses/ws";
import { z } from "zod";
import { BASE_URL, CITIES, KEY, SAYS, check, line, run } from "./lines.mjs";

const client = new OpenAI({ apiKey: KEY, baseURL: BASE_URL, maxRetries: 0 });
const HI = [{ role: "user", content: "Where is Oslo?" }];
const City = z.object({ name: z.string(), people: z.number() });
const OSLO = { name: "Oslo", people: 7 };
const parameters = {
  type: "object",
  properties: { city: { type: "string" } },
  required: ["city"],
  additionalProperties: false,
};
const WEATHER = { name: "weather", description: "The weather in a city.", parameters, strict: true };
const TOOLS = [{ type: "function", function: WEATHER }];

line("chat", async () => {
  const answer = await client.chat.completions.create({ model: "talks", messages: HI });
  check(answer.choices[0].message.content, SAYS);
});

line("chat, streamed, with usage", async () => {
  const stream = await client.chat.completions.create({
    model: "talks",
    messages: HI,
    stream: true,
    stream_options: { include_usage: true },
  });
  let text = "";
  let usage;
  for await (const chunk of stream) {
    text += chunk.choices[0]?.delta?.content ?? "";
    usage = chunk.usage;
  }
  check([text, usage.completion_tokens], [SAYS, 5]);
});

line("chat, streamed, with its helper", async () => {
  const stream = client.chat.completions.stream({ model: "talks", messages: HI });
  check(await stream.finalContent(), SAYS);
});

line("chat: runTools, a loop of five calls", async () => {
  const asked = [];
  const weather = {
    ...WEATHER,
    strict: undefined,
    function: ({ city }) => asked.push(city) && "rain",
    parse: JSON.parse,
  };
  const runner = client.chat.completions.runTools({
    model: "calls-five",
    messages: HI,
    tools: [{ type: "function", function: weather }],
  });
  check([await runner.finalContent(), asked], ["It rains everywhere.", CITIES]);
});

line("chat: runTools, streamed", async () => {
  const asked = [];
  const weather = { ...WEATHER, strict: undefined, function: ({ city }) => asked.push(city) && "rain", parse: JSON.parse };
  const runner = client.chat.completions.runTools({
    model: "calls-five",
    messages: HI,
    tools: [{ type: "function", function: weather }],
    stream: true,
  });
  check([await runner.finalContent(), asked], ["It rains everywhere.", CITIES]);
});

line("chat: calls in parallel", async () => {
  const answer = await client.chat.completions.create({ model: "calls-two", messages: HI, tools: TOOLS });
  check(answer.choices[0].message.tool_calls.length, 2);
});

line("chat: parse, with a schema of zod", async () => {
  const answer = await client.chat.completions.parse({
    model: "writes-json",
    messages: HI,
    response_format: zodResponseFormat(City, "city"),
  });
  check(answer.choices[0].message.parsed, OSLO);
});

line("chat: parse, with a tool of zod, its call given back", async () => {
  const tool = zodFunction({ name: "weather", parameters: z.object({ city: z.string() }) });
  const first = await client.chat.completions.parse({ model: "calls", messages: HI, tools: [tool] });
  const [call] = first.choices[0].message.tool_calls;
  check(call.function.parsed_arguments, { city: "Oslo" });
  const second = await client.chat.completions.parse({
    model: "calls",
    messages: [...HI, first.choices[0].message, { role: "tool", tool_call_id: call.id, content: "rain" }],
    tools: [tool],
  });
  check(second.choices[0].message.content, "It rains in Oslo.");
});

line("chat: tools and a schema in one request", async () => {
  const say = { model: "calls-then-json", tools: TOOLS, response_format: zodResponseFormat(City, "city") };
  const first = (await client.chat.completions.parse({ messages: HI, ...say })).choices[0].message;
  const result = { role: "tool", tool_call_id: first.tool_calls[0].id, content: "rain" };
  const second = await client.chat.completions.parse({ messages: [...HI, first, result], ...say });
  check(second.choices[0].message.parsed, OSLO);
});

line("completions", async () => {
  const answer = await client.completions.create({ model: "talks", prompt: "Where is Oslo?" });
  check(answer.choices[0].text, SAYS);
});

line("responses", async () => {
  const answer = await client.responses.create({ model: "talks", input: "Where is Oslo?" });
  check(answer.output_text, SAYS);
});

line("responses, streamed, with its helper", async () => {
  const stream = client.responses.stream({ model: "talks", input: "Where is Oslo?" });
  const kinds = [];
  for await (const event of stream) kinds.push(event.type);
  check((await stream.finalResponse()).output_text, SAYS);
  check(kinds.at(-1), "response.completed");
});

line("responses: parse, with a schema of zod", async () => {
  const answer = await client.responses.parse({
    model: "writes-json",
    input: "Oslo",
    text: { format: zodTextFormat(City, "city") },
  });
  check(answer.output_parsed, OSLO);
});

line("responses: a tool loop of five calls", async () => {
  const input = [...HI];
  const asked = [];
  let answer;
  for (let turn = 0; turn < 6; turn += 1) {
    answer = await client.responses.create({
      model: "calls-five",
      input,
      tools: [{ type: "function", ...WEATHER }],
    });
    input.push(...answer.output);
    for (const item of answer.output.filter((one) => one.type === "function_call")) {
      asked.push(JSON.parse(item.arguments).city);
      input.push({ type: "function_call_output", call_id: item.call_id, output: "rain" });
    }
  }
  check([asked, answer.output_text], [CITIES, "It rains everywhere."]);
});

line("responses: a second turn by previous_response_id", async () => {
  const first = await client.responses.create({ model: "talks", input: "Where is Oslo?", store: true });
  const second = await client.responses.create({
    model: "talks",
    input: "And Bergen?",
    previous_response_id: first.id,
  });
  if (second.usage.input_tokens <= first.usage.input_tokens) throw new Error("the first turn is forgotten");
});

line("responses: stored, retrieved, deleted", async () => {
  const made = await client.responses.create({ model: "talks", input: "Where is Oslo?", store: true });
  check((await client.responses.retrieve(made.id)).output_text, SAYS);
  await client.responses.delete(made.id);
});

line("responses: in the background, its stream resumed", async () => {
  const stream = await client.responses.create({ model: "talks", input: "Oslo?", background: true, store: true, stream: true });
  let first;
  for await (const event of stream) {
    first = event;
    break;
  }
  const rest = await client.responses.retrieve(first.response.id, {
    stream: true,
    starting_after: first.sequence_number,
  });
  let last;
  for await (const event of rest) last = event;
  check(last.response.output[0].content[0].text, SAYS);
});

line("responses over a websocket (ResponsesWS), with a second turn", async () => {
  const socket = new ResponsesWS(client);
  const turn = (more) =>
    new Promise((resolve, reject) => {
      socket.on("error", reject);
      socket.on("response.completed", (event) => resolve(event.response));
      socket.send({ type: "response.create", model: "talks", input: "Where is Oslo?", ...more });
    });
  await new Promise((resolve) => socket.socket.once("open", resolve));
  const first = await turn({});
  const second = await turn({ previous_response_id: first.id });
  socket.close();
  check([first.output[0].content[0].text, second.output[0].content[0].text], [SAYS, SAYS]);
});

line("embeddings", async () => {
  const made = await client.embeddings.create({ model: "embeds", input: ["Oslo", "Bergen"] });
  check(made.data.map((item) => item.embedding.length), [64, 64]);
});

line("models: listed and retrieved", async () => {
  const names = [];
  for await (const model of client.models.list()) names.push(model.id);
  check([names.includes("talks"), (await client.models.retrieve("talks")).id], [true, "talks"]);
});

line("files: uploaded, read, deleted", async () => {
  const made = await client.files.create({ file: await toFile(Buffer.from('{"a": 1}\n'), "lines.jsonl"), purpose: "batch" });
  check(await (await client.files.content(made.id)).text(), '{"a": 1}\n');
  check((await client.files.delete(made.id)).deleted, true);
});

line("batches: made, polled, their output read", async () => {
  const asked = { custom_id: "one", method: "POST", url: "/v1/chat/completions", body: { model: "talks", messages: HI } };
  const file = await client.files.create({ file: await toFile(Buffer.from(JSON.stringify(asked)), "b.jsonl"), purpose: "batch" });
  let batch = await client.batches.create({
    input_file_id: file.id,
    endpoint: "/v1/chat/completions",
    completion_window: "24h",
  });
  while (!["completed", "failed", "expired", "cancelled"].includes(batch.status)) {
    await new Promise((resolve) => setTimeout(resolve, 200));
    batch = await client.batches.retrieve(batch.id);
  }
  const told = JSON.parse(await (await client.files.content(batch.output_file_id)).text());
  check([told.custom_id, told.response.body.choices[0].message.content], ["one", SAYS]);
});

line("errors are the SDK's own, with code and field", async () => {
  const caught = await client.chat.completions.create({ model: "nothing", messages: HI }).catch((error) => error);
  check([caught.constructor.name, caught.code, caught.param], ["NotFoundError", "model_not_found", "model"]);
  const broken = await client.chat.completions.stream({ model: "fails", messages: HI }).finalContent().catch((e) => e);
  if (!(broken instanceof Error)) throw new Error("a stream that failed ended like one that didn't");
});

await run();
