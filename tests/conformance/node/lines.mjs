// The lines of one client in Node.js: what it should be able to do, each a function that throws where it can't. A line's
// outcome is printed as a line of JSON. SLUICE_URL (without /v1) and SLUICE_KEY say where the gateway is.
import { isDeepStrictEqual } from "node:util";

export const URL = process.env.SLUICE_URL;
export const BASE_URL = `${URL}/v1`;
export const KEY = process.env.SLUICE_KEY;
export const SAYS = "Oslo lies by the sea.";
export const CITIES = ["Oslo", "Bergen", "Narvik", "Molde", "Hamar"];
const SECONDS = 60;
const lines = [];

// Add a function to what is run, under this name.
export function line(name, run) {
  lines.push([name, run]);
}

// Throw an error that tells both unless they are equal.
export function check(found, wanted) {
  if (!isDeepStrictEqual(found, wanted)) throw new Error(`${JSON.stringify(found)} isn't ${JSON.stringify(wanted)}`);
}

// Run every line, or those that the command line names, and print their outcomes.
export async function run() {
  process.on("unhandledRejection", () => {}); // of a line that was told as failed already
  const asked = process.argv.slice(2);
  for (const [name, run] of lines) {
    if (asked.length && !asked.includes(name)) continue;
    let error = null;
    let timer;
    const late = new Promise((_, reject) => {
      timer = setTimeout(() => reject(new Error(`it took more than ${SECONDS} s`)), SECONDS * 1000);
    });
    try {
      await Promise.race([run(), late]);
    } catch (caught) {
      if (asked.length) console.error(caught);
      error = told(caught);
    }
    clearTimeout(timer);
    console.log(JSON.stringify({ line: name, error }));
  }
  process.exit(0);
}

// What an error says, with what the server answered: some clients keep that apart.
function told(error) {
  const more = error?.responseBody ?? (error?.lastError ? told(error.lastError) : undefined);
  return [error?.name, error?.message ?? String(error), more].filter(Boolean).join(": ");
}
