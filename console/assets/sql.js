// SQL: a query, its rows and a chart of them. The query is in the address, so a link shares it.
import { isNumber, lines, listAll } from "./api.js";
import { quote, schemaOf } from "./categories.js";
import { chart } from "./chart.js";
import { code, el, failure, fill, note, table } from "./dom.js";

const shownRows = 1000; // in the page
const keptRows = 50000; // for export; the rest of the answer is not read
const everyColumn = ["payload", "_time", "_persisted", "_key", "_attr", "_shard", "_offset", "_rate"];
const keywords = ["SELECT", "FROM", "WHERE", "GROUP BY", "ORDER BY", "LIMIT", "count(*)", "date_trunc('minute', _time)", "INTERVAL '1 hour'", "now()"];

export async function sql(body, { parameters }, signal) {
  const words = [...keywords];
  const text = el("textarea", { id: "query", spellcheck: "false", autocomplete: "off", "aria-describedby": "query-help", "aria-controls": "completion", "aria-autocomplete": "list" });
  text.value = parameters.get("q") ?? "";
  const completion = el("ul", { class: "completion", id: "completion", role: "listbox", "aria-label": "Completions", hidden: true });
  const state = el("p", { class: "note", role: "status", id: "state" });
  const result = el("div", { id: "result" });
  const run = () => {
    const hash = `#/sql?q=${encodeURIComponent(text.value.trim())}`;
    history.replaceState(null, "", hash);
    return runQuery(text.value.trim(), state, result, signal);
  };
  fill(body, 
    el("form", { "aria-label": "Query", submit: (e) => { e.preventDefault(); run(); } },
      el("label", { for: "query" }, "Query"), text, completion,
      el("p", { class: "note", id: "query-help" }, "Ctrl+Enter runs it. Ctrl+Space completes tables and columns; arrows choose, Enter takes, Escape leaves."),
      el("p", { class: "buttons" }, el("button", { class: "main", id: "run" }, "Run"))),
    state, result);
  completeWords(text, completion, words, run);
  const { all } = await listAll("ControlService/ListCategories", "categories", {}, signal, 2000);
  words.push(...all.map((c) => quote(c.name)), ...new Set(all.flatMap((c) => schemaOf(c.schema)?.fields.map((f) => quote(f.name)) ?? [])), ...everyColumn);
  if (text.value.trim()) await run();
  else if (all.length) {
    const first = all.find((c) => schemaOf(c.schema)) ?? all[0];
    fill(result, el("div", { class: "card" }, note("For example:"), el("pre", {}, `SELECT * FROM ${quote(first.name)} LIMIT 100`),
      el("button", { type: "button", click: () => { text.value = `SELECT * FROM ${quote(first.name)} LIMIT 100`; run(); } }, "Run that")));
  } else fill(result, el("div", { class: "card" }, note("There is no category that you may query. ", code("scribe category create access --schema infer"), " makes one with columns.")));
}

let running = new AbortController();

async function runQuery(text, state, result, signal) {
  running.abort();
  running = new AbortController();
  const ended = AbortSignal.any([signal, running.signal]);
  fill(result);
  if (!text) {
    state.textContent = "Write a query first.";
    return;
  }
  state.textContent = "Running …";
  const began = performance.now();
  const rows = [];
  let cut = false;
  try {
    for await (const row of lines(`/v1/query?${new URLSearchParams({ sql: text, format: "jsonl", limit: keptRows + 1 })}`, ended)) {
      if (rows.length === keptRows) {
        cut = true;
        break;
      }
      rows.push(row);
      if (rows.length % 1000 === 0) state.textContent = `Running: ${rows.length} rows …`;
    }
  } catch (error) {
    if (ended.aborted) return;
    state.textContent = "";
    fill(result, failure(error));
    return;
  }
  const seconds = ((performance.now() - began) / 1000).toFixed(2);
  state.textContent = `${rows.length} rows in ${seconds} s.${cut ? ` The answer was cut at ${keptRows} rows: ask for less with LIMIT or WHERE.` : ""}${rows.length > shownRows ? ` The first ${shownRows} are shown; the export has all ${rows.length}.` : ""}`;
  if (rows.length === 0) {
    fill(result, note("The answer is complete and has no row."));
    return;
  }
  const names = Object.keys(rows[0]);
  const numeric = (name) => rows.slice(0, 20).every((row) => row[name] === null || isNumber(row[name]));
  fill(result, 
    el("p", { class: "buttons" },
      el("button", { type: "button", id: "csv", click: () => save("rows.csv", "text/csv", csv(names, rows)) }, "Export CSV"),
      el("button", { type: "button", id: "json", click: () => save("rows.json", "application/json", json(rows)) }, "Export JSON")),
    chart(names, rows),
    table("Answer", names.map((name) => ({ name, number: numeric(name), wide: !numeric(name) && rows.slice(0, 50).some((row) => String(show(row[name])).length > 40), of: (row) => show(row[name]) })), rows.slice(0, shownRows)));
}

const show = (value) => (value === null ? "NULL" : typeof value === "object" && !isNumber(value) ? JSON.stringify(value) : value);

// json writes rows with their numbers as the cell wrote them.
export const json = (rows) => JSON.stringify(rows, null, 1);

// csv writes rows for spreadsheets. A text that they would take for a formula gets an apostrophe in front.
export function csv(names, rows) {
  const field = (value) => {
    const text = value === null ? "" : typeof value === "string" && /^[=+\-@\t\r]/.test(value) ? `'${value}` : String(show(value));
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return [names.map(field), ...rows.map((row) => names.map((name) => field(row[name])))].map((line) => line.join(",")).join("\r\n") + "\r\n";
}

function save(name, type, text) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  el("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

// completeWords offers tables, columns and keywords that begin like the word before the cursor.
function completeWords(text, list, words, run) {
  let offers = [];
  let chosen = 0;
  const wordBefore = () => /["\w.*(]*$/.exec(text.value.slice(0, text.selectionStart))[0];
  const close = () => { list.hidden = true; offers = []; text.removeAttribute("aria-activedescendant"); };
  const draw = () => {
    list.hidden = offers.length === 0;
    fill(list, ...offers.map((word, i) => el("li", { role: "option", id: `offer-${i}`, "aria-selected": String(i === chosen), mousedown: (e) => { e.preventDefault(); chosen = i; take(); } }, word)));
    if (offers.length) {
      text.setAttribute("aria-activedescendant", `offer-${chosen}`);
      list.children[chosen].scrollIntoView({ block: "nearest" });
    }
  };
  const offer = () => {
    const begun = wordBefore().toLowerCase();
    offers = [...new Set(words)].filter((w) => w.toLowerCase().replace('"', "").startsWith(begun.replace('"', "")) && w.toLowerCase() !== begun).slice(0, 30);
    chosen = 0;
    draw();
  };
  const take = () => {
    const end = text.selectionStart;
    text.setRangeText(offers[chosen], end - wordBefore().length, end, "end");
    close();
  };
  text.addEventListener("input", () => (wordBefore().length >= 2 ? offer() : close()));
  text.addEventListener("blur", close);
  text.addEventListener("keydown", (event) => {
    const open = offers.length > 0;
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { close(); run(); }
    else if (event.key === " " && event.ctrlKey) offer();
    else if (open && event.key === "Enter") take();
    else if (open && event.key === "Escape") close();
    else if (open && (event.key === "ArrowDown" || event.key === "ArrowUp")) { chosen = (chosen + (event.key === "ArrowDown" ? 1 : offers.length - 1)) % offers.length; draw(); }
    else return;
    event.preventDefault();
  });
}
