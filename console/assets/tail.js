// Tail: the messages of a category as they come. The page holds a bounded number of rows; older ones are dropped.
import { lines, listAll, sleep } from "./api.js";
import { code, el, failure, fill, note } from "./dom.js";

const shownRows = 500;
const mostAttempts = 5; // to go on after a cut
const shownBytes = 16 << 10; // of a message

export async function tail(body, { name, parameters, heading }, signal) {
  if (!name) {
    const { all } = await listAll("ControlService/ListCategories", "categories", { withoutSchemas: true }, signal);
    fill(body, all.length === 0 ? el("div", { class: "card" }, note("There is no category that you may see. Write to one:"), el("pre", {}, "echo hello | scribe produce greetings"))
      : el("div", {}, note("Which category?"), el("ul", {}, all.slice(0, 1000).map((c) => el("li", {}, el("a", { href: `#/tail/${encodeURIComponent(c.name)}` }, c.name))))));
    return;
  }
  fill(heading, "Tail of ", name);
  const from = el("input", { id: "from", value: parameters.get("from") ?? "latest", list: "starts", autocomplete: "off", spellcheck: "false" });
  const where = el("input", { id: "where", value: parameters.get("where") ?? "", size: 40, autocomplete: "off", spellcheck: "false", placeholder: "status >= 500" });
  const pause = el("button", { type: "button", id: "pause", "aria-pressed": "false" }, "Pause");
  const state = el("p", { class: "note", role: "status", id: "state" }, "Opening …");
  const rows = el("tbody", { id: "messages" });
  const restart = (event) => {
    event.preventDefault();
    const query = new URLSearchParams({ from: from.value.trim() || "latest" });
    if (where.value.trim()) query.set("where", where.value.trim());
    const hash = `#/tail/${encodeURIComponent(name)}?${query}`;
    if (location.hash === hash) window.dispatchEvent(new HashChangeEvent("hashchange"));
    else location.hash = hash;
  };
  const failed = el("div");
  fill(body, 
    el("form", { class: "bar", submit: restart, "aria-label": "What to read" },
      el("div", {}, el("label", { for: "from" }, "From"), from, el("datalist", { id: "starts" }, ["latest", "earliest", "15m", "1h", "today"].map((v) => el("option", { value: v })))),
      el("div", {}, el("label", { for: "where" }, "Where (a condition in SQL; it needs a schema)"), where),
      el("button", { class: "main" }, "Read"), pause,
      el("button", { type: "button", click: () => { fill(rows); } }, "Clear")),
    state, failed,
    el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Messages, the newest first" }, el("table", {},
      el("thead", {}, el("tr", {}, ["time", "key", "message"].map((text) => el("th", { scope: "col" }, text)))), rows)));

  // While it is paused nothing is read, so the server waits, too: the connection holds what is on its way. A server that waits too long cuts
  // the tail, which then goes on at its last checkpoint.
  let resume = null;
  let ended = false;
  let paused = null;
  pause.addEventListener("click", () => {
    const begins = paused === null;
    pause.setAttribute("aria-pressed", String(begins));
    pause.textContent = begins ? "Go on" : "Pause";
    if (begins) paused = new Promise((done) => { resume = done; });
    else { paused = null; resume(); }
    tell();
  });
  let count = 0;
  let telling = 0;
  const tell = () => { // not for each message: a screen reader says it
    telling ||= setTimeout(describe, 250);
  };
  const describe = () => {
    telling = 0;
    if (ended) return;
    state.textContent = `${paused ? "Paused" : "Reading"}: ${count} messages, ${count > shownRows ? `the last ${shownRows}` : "all"} below.${count ? "" : " Nothing has come yet."}`;
  };
  signal.addEventListener("abort", () => resume?.());

  let place = from.value;
  let attempts = 0; // without a line in between
  let fresh = []; // rows since the last checkpoint: they come again when the tail goes on there
  let freshMessages = 0;
  const condition = where.value;
  const read = async () => {
    for (const row of fresh) row.remove();
    count -= freshMessages;
    fresh = [];
    freshMessages = 0;
    const form = new URLSearchParams({ from: place }); // a URL may be too short for a checkpoint
    if (condition) form.set("where", condition);
    for await (const line of lines(`/v1/tail/${encodeURIComponent(name)}`, signal, form)) {
      attempts = 0;
      if (paused) await paused;
      if (line.gap || "shard" in line) {
        const row = line.gap ? el("tr", {}, el("td", {}, "gap"), el("td", {}), el("td", { class: "wide degraded" }, line.gap.text)) : messageRow(line);
        rows.prepend(row);
        fresh.push(row);
        if (!line.gap) { count++; freshMessages++; }
      }
      if (line.checkpoint) {
        place = line.checkpoint;
        fresh = [];
        freshMessages = 0;
      }
      while (rows.childElementCount > shownRows) rows.lastElementChild.remove();
      tell();
    }
  };
  try {
    for (; ;) {
      try {
        await read();
        break;
      } catch (error) {
        if (signal.aborted || !["cut", "unavailable"].includes(error.code) || ++attempts > mostAttempts) throw error;
        state.textContent = "Cut off; the tail goes on at its last checkpoint …";
        await sleep(500 * 2 ** attempts, signal);
        if (paused) await paused;
        if (signal.aborted) return;
      }
    }
    ended = true;
    state.textContent = `The tail ended after ${count} messages.`;
  } catch (error) {
    ended = true;
    if (signal.aborted) return;
    state.textContent = `Stopped after ${count} messages.`;
    fill(failed, failure(error));
    if (condition) failed.append(note("A condition needs columns: see the schema of the category, or ", code("scribe schema --help"), "."));
  }
}

function messageRow(line) {
  const cut = (text) => (text.length > shownBytes ? `${text.slice(0, shownBytes)} … (${text.length} characters)` : text);
  return el("tr", {},
    el("td", { title: `${line.shard}/${line.lsn}/${line.index}` }, line.time ?? `${line.time_us} µs`),
    el("td", {}, cut(line.key ?? (line.key_base64 ? `base64 ${line.key_base64}` : ""))),
    el("td", { class: "wide" }, cut(line.payload ?? `base64 ${line.payload_base64 ?? ""}`)));
}
