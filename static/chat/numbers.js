// Amounts for people: credits rounded down, since nobody should count on what isn't there.

const MICRO = 1_000_000;

/** µcr as credits: two decimals from 100 on, four from 1 on, else all six. */
export function credits(micro) {
  const size = Math.abs(micro);
  const digits = size >= 100 * MICRO ? 2 : size >= MICRO ? 4 : 6;
  const step = 10 ** (6 - digits);
  const shown = Math.floor(micro / step) / 10 ** digits;
  return shown.toLocaleString("en", { minimumFractionDigits: digits === 2 ? 2 : 0, maximumFractionDigits: digits });
}

/** A whole number with thousands separators. */
export function count(number) {
  return number.toLocaleString("en");
}

/** A number of tokens, short: 8K, 128K, 1M. */
export function size(tokens) {
  if (tokens >= 1_000_000) return `${+(tokens / 1_000_000).toFixed(1)}M`;
  return tokens >= 1000 ? `${Math.round(tokens / 1024)}K` : String(tokens);
}

/** Milliseconds as "80 ms" or "1.2 s". */
export function time(ms) {
  return ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`;
}

/** A moment as a day and time in the reader's own zone. */
export function moment(text) {
  return new Date(text).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "short" });
}
