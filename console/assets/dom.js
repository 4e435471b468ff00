// Elements and texts. What comes from the cell reaches the page as text alone: nothing here parses HTML, and the page's policy forbids it.

// el makes an element. Attributes that are functions are listeners, false and null ones are left out; children are nodes or texts.
export function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") node.addEventListener(name, value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value != null) node.setAttribute(name, value);
  }
  return fill(node, ...children);
}

// fill replaces what an element has by nodes and texts. Lists of them are taken apart; null and undefined are nothing.
export function fill(node, ...children) {
  node.replaceChildren(...children.flat(Infinity).filter((child) => child != null).map((child) => (child instanceof Node ? child : visibleText(child))));
  return node;
}

// visibleText shows characters that would be invisible, or turn the text around, by their numbers.
export function visibleText(value) {
  return String(value).replaceAll("\r\n", "\n").replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g, (c) =>
    "\\u" + c.charCodeAt(0).toString(16).padStart(4, "0"));
}

// table makes a table. A column is {name, of, number, wide, wraps}; of returns a text or a node of a row.
export function table(caption, columns, rows) {
  const kind = (column) => (column.number ? "number" : column.wide ? "wide" : column.wraps ? "wraps" : null);
  return el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption }, el("table", {},
    el("thead", {}, el("tr", {}, columns.map((c) => el("th", { scope: "col", class: kind(c) === "number" ? "number" : null }, c.name)))),
    el("tbody", {}, rows.map((row) => el("tr", {}, columns.map((c) => el("td", { class: kind(c) }, c.of(row) ?? "")))))));
}

// facts makes a list of names and values; those without a value are left out.
export function facts(pairs) {
  return el("dl", { class: "facts" }, pairs.filter(([, value]) => value != null && value !== "").map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
}

export const note = (...texts) => el("p", { class: "note" }, texts);
export const code = (text) => el("code", {}, text);

// failure shows an error with what to do.
export function failure(error) {
  return el("div", { class: "card error", role: "alert" },
    el("strong", {}, error.title ?? "That did not work"), el("pre", {}, error.message), error.hint ? note(error.hint) : null);
}

export function bytes(n) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  for (n = Number(n); n >= 1024 && unit < units.length - 1; unit++) n /= 1024;
  return `${n >= 100 || unit === 0 ? Math.round(n) : n.toFixed(1)} ${units[unit]}`;
}

export const rate = (n) => (n >= 10 || n === 0 ? Math.round(n).toLocaleString("en") : n.toFixed(1));

// age is the time since micros, microseconds since 1970 as the cell writes them.
export const age = (micros) => duration((Date.now() - Number(micros) / 1000) / 1000);

export function duration(seconds) {
  seconds = Math.max(0, seconds);
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "min"]]) if (seconds >= 2 * size) return `${Math.floor(seconds / size)} ${unit}`;
  return `${Math.round(seconds)} s`;
}

// word is the readable form of a value of an enum: QUOTA_MODE_BLOCK is "block".
export const word = (value, prefix) => (value ?? "").replace(prefix, "").toLowerCase().replaceAll("_", " ");
