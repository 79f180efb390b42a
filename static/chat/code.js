// The request that the page would send next, as a program of the reader's own.

/** Return the fields of the request, as HTTP takes them. */
export function fields({ model, input, settings }) {
  return {
    model,
    ...(settings.system ? { instructions: settings.system } : {}),
    input: input.length ? input : "Hello!",
    ...(settings.temperature === null ? {} : { temperature: settings.temperature }),
    ...(settings.maxOutput ? { max_output_tokens: settings.maxOutput } : {}),
    stream: true,
  };
}

/** Return a command for a shell. */
export function curl(request, base) {
  const body = JSON.stringify(fields(request), null, 2).replaceAll("'", "'\\''");
  return `curl -N ${base}/responses \\\n  -H "Authorization: Bearer $SLUICE_API_KEY" \\\n  -H "Content-Type: application/json" \\\n  -d '${body}'`;
}

/** Return a program with OpenAI's SDK. */
export function python(request, base) {
  const lines = Object.entries(fields(request)).map(([name, value]) => `    ${name}=${literal(value, 1)},`);
  return [
    "import os",
    "",
    "from openai import OpenAI",
    "",
    `client = OpenAI(base_url="${base}", api_key=os.environ["SLUICE_API_KEY"])`,
    "stream = client.responses.create(",
    ...lines,
    ")",
    "for event in stream:",
    '    if event.type == "response.output_text.delta":',
    '        print(event.delta, end="", flush=True)',
  ].join("\n");
}

/** A JSON value as Python writes it; texts and numbers are written alike in both. */
function literal(value, depth) {
  if (value === true) return "True";
  if (value === false) return "False";
  if (value === null) return "None";
  if (typeof value !== "object") return JSON.stringify(value);
  const inner = "    ".repeat(depth + 1);
  const close = "    ".repeat(depth);
  if (Array.isArray(value)) return `[\n${value.map((one) => `${inner}${literal(one, depth + 1)},\n`).join("")}${close}]`;
  return `{${Object.entries(value).map(([name, one]) => `${JSON.stringify(name)}: ${literal(one, depth + 1)}`).join(", ")}}`;
}
