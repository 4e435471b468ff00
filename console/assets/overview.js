// Overview: is the cell well, what is it made of, and what flows through it.
import { get, sleep } from "./api.js";
import { bytes, code, duration, el, facts, failure, fill, note, rate, table } from "./dom.js";

const since = (time) => duration((Date.now() - Date.parse(time)) / 1000);

const sentences = {
  healthy: "everything that was looked at is in order",
  degraded: "the cell works, but not as well as it should, or not for long",
  failing: "something that a cell is for does not work",
  unknown: "nothing is known to be wrong, but only who may monitor the cell may ask the processes how they are",
};

export async function overview(body, _, signal) {
  const health = el("section", { class: "card", "aria-label": "Health", "aria-live": "polite" }, note("Asking the processes …"));
  const members = el("section", { "aria-label": "Processes" });
  const flows = el("section", { "aria-label": "Flows" }, el("h2", {}, "Flows"), note("Measuring …"));
  fill(body, health, members, flows);
  let last = null; // the status that was read last, and when
  const askStatus = async () => {
    const status = await get("/v1/status", signal);
    last = { status, at: new Date() };
    showHealth(health, status);
    showMembers(members, status);
  };
  const missStatus = (error) => {
    if (last) showOldHealth(health, last, error);
    else fill(health, failure(error));
  };
  const measure = async () => showFlows(flows, await get("/v1/traffic?interval=2s", signal)); // takes as long as its interval
  const missTraffic = (error) => fill(flows, el("h2", {}, "Flows"),
    error.status === 403 ? note("What flows through the cell is for those who look after it: a token that may ", code("monitor:*"), " shows it.") : failure(error));
  // Neither waits for the other: the cell's health is asked for most when its traffic can't be measured.
  await Promise.all([repeat(askStatus, missStatus, 2000, signal), repeat(measure, missTraffic, 0, signal)]);
}

const pauseAfterError = 5000;

// repeat does something again and again, until the page ends or the caller is refused: another token opens the page anew.
async function repeat(step, miss, pause, signal) {
  for (; !signal.aborted;) {
    let wait = pause;
    try {
      await step();
    } catch (error) {
      if (signal.aborted) return;
      miss(error);
      if (error.status === 401 || error.status === 403) return;
      wait = pauseAfterError;
    }
    await sleep(wait, signal);
  }
}

// showOldHealth says that what is shown was so, and is not known to be.
function showOldHealth(section, { status, at }, error) {
  showHealth(section, status);
  fill(section.querySelector("#verdict"), `${status.health} at ${at.toLocaleTimeString()}`);
  section.querySelector("#verdict").className = "verdict unknown";
  section.prepend(failure(error), note("What follows is old: the process can't be asked now. This page tries again."));
}

function showHealth(section, s) {
  fill(section, 
    el("p", { class: `verdict ${s.health}`, id: "verdict" }, s.health),
    note(sentences[s.health] ?? ""),
    s.reasons.length ? el("ul", {}, s.reasons.map((r) => el("li", {}, el("strong", { class: r.severity }, r.severity), ` ${r.subject}: ${r.text}`))) : null,
    facts([
      ["version", s.version], ["up", since(s.started_at)], ["roles here", s.roles.join(", ")],
      ["categories", s.categories ? `${s.categories}${s.known_last ? " (known last)" : ""}` : null], ["leader", s.leader?.name],
    ]));
}

function showMembers(section, s) {
  fill(section, el("h2", {}, s.known_last ? "Processes (known last)" : "Processes"), s.members.length ? table("Processes", [
    { name: "process", of: (m) => m.id }, { name: "roles", wraps: true, of: (m) => m.roles.join(", ") }, { name: "address", of: (m) => m.url },
    { name: "load", number: true, of: (m) => `${(100 * m.load).toFixed(1)} %` }, { name: "up", number: true, of: (m) => since(m.joined_at) },
    { name: "version", of: (m) => m.version },
  ], s.members) : note("No process is known."));
}

const columns = [
  { name: "category", of: (r) => (r.category?.startsWith("(") ? r.category : el("a", { href: `#/categories/${encodeURIComponent(r.category)}` }, r.category)) },
  { name: "in / s", number: true, of: (r) => bytes(r.written_bytes_per_second) }, { name: "messages / s", number: true, of: (r) => rate(r.written_messages_per_second) },
  { name: "out / s", number: true, of: (r) => bytes(r.read_bytes_per_second) }, { name: "messages / s", number: true, of: (r) => rate(r.read_messages_per_second) },
  { name: "errors / s", number: true, of: (r) => rate(r.errors_per_second) },
  { name: "quota", number: true, of: (r) => (r.quota_bytes_per_second ? `${Math.round(100 * (r.quota_used ?? 0))} %` : "–") },
  { name: "readers", number: true, of: (r) => r.readers }, { name: "lag", number: true, of: (r) => (r.lag_seconds ? duration(r.lag_seconds) : "–") },
];

const shownFlows = 50;

function showFlows(section, top) {
  const rows = top.categories.slice(0, shownFlows);
  fill(section, el("h2", {}, "Flows"), rows.length ? table("Flows by category", columns, [...rows, top.total])
    : note("Nothing has flowed yet. Write something: ", code("echo hello | scribe produce greetings")),
  top.categories.length > shownFlows ? note(`The ${shownFlows} busiest of ${top.categories.length} are shown.`) : null,
  top.failed?.length ? note(`Missing from the sums: ${top.failed.join("; ")}`) : null);
}
