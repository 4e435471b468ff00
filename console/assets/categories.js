// Categories: the list, and one in detail.
import { call, get, listAll } from "./api.js";
import { age, bytes, code, duration, el, facts, fill, note, rate, table, word } from "./dom.js";

const shownCategories = 1000;
const link = (page, name, text) => el("a", { href: `#/${page}/${encodeURIComponent(name)}` }, text ?? name);

export async function categories(body, { name, heading }, signal) {
  return name ? showCategory(body, name, heading, signal) : listCategories(body, signal);
}

async function listCategories(body, signal) {
  const { all, cut } = await listAll("ControlService/ListCategories", "categories", { withoutSchemas: true }, signal);
  if (all.length === 0) {
    fill(body, el("div", { class: "card" }, note("There is no category that you may see. The first message makes one:"), el("pre", {}, "echo hello | scribe produce greetings")));
    return;
  }
  const place = el("div");
  const filter = el("input", { id: "filter", type: "search", autocomplete: "off", input: () => draw() });
  let flows = new Map();
  const draw = () => {
    const wanted = all.filter((c) => c.name.includes(filter.value)).slice(0, shownCategories);
    fill(place, table("Categories", [
      { name: "name", of: (c) => link("categories", c.name) }, { name: "owner", of: (c) => c.owner },
      { name: "in / s", number: true, of: (c) => (flows.size ? bytes(flows.get(c.name)?.written_bytes_per_second ?? 0) : "…") },
      { name: "out / s", number: true, of: (c) => (flows.size ? bytes(flows.get(c.name)?.read_bytes_per_second ?? 0) : "…") },
      { name: "retention", number: true, of: (c) => duration(parseFloat(c.retention)) }, { name: "shards", number: true, of: (c) => c.shards },
      { name: "delivery", of: (c) => word(c.delivery, "DELIVERY_") }, { name: "age", number: true, of: (c) => age(c.createdAt) },
      { name: "", of: (c) => el("span", {}, link("tail", c.name, "tail"), " ", queryLink(c.name, "query")) },
    ], wanted), note(`${wanted.length} of ${all.length}${cut ? " or more" : ""} categories.`));
  };
  fill(body, el("form", { class: "bar", role: "search", submit: (e) => e.preventDefault() }, el("div", {}, el("label", { for: "filter" }, "Name contains"), filter)), place);
  draw();
  try {
    const top = await get("/v1/traffic?interval=1s", signal);
    flows = new Map([...top.categories, top.total].map((r) => [r.category, r]));
    draw();
  } catch (error) {
    if (!signal.aborted) place.append(note(error.status === 403 ? "Rates are for those who may monitor the cell." : `Rates are missing: ${error.message}`));
  }
}

const queryLink = (name, text) => el("a", { href: `#/sql?q=${encodeURIComponent(`SELECT * FROM ${quote(name)} LIMIT 100`)}` }, text);

// quote writes a name as SQL wants it.
export const quote = (name) => (/^[a-z_][a-z0-9_]*$/.test(name) ? name : `"${name.replaceAll('"', '""')}"`);

async function showCategory(body, name, heading, signal) {
  fill(heading, name);
  const { category: c, shards = [] } = await call("ControlService/GetCategory", { name, withShards: true }, signal);
  const quota = (amount, mode) => (Number(amount) ? `${bytes(amount)} / s, ${word(mode, "QUOTA_MODE_") || "block"}` : "none");
  const schema = schemaOf(c.schema);
  fill(body, 
    el("p", { class: "buttons" }, link("tail", name, "Tail it"), queryLink(name, "Query it"), el("a", { href: "#/groups" }, "Groups")),
    el("div", { class: "card" }, facts([
      ["owner", c.owner], ["retention", duration(parseFloat(c.retention))], ["delivery", word(c.delivery, "DELIVERY_")],
      ["logical shards", `${c.shards}, ${c.shardField ? `by field ${c.shardField}` : word(c.shardBy, "SHARD_BY_") || "sticky"}`],
      ["quota", quota(c.quotaBytesPerSecond, c.quotaMode)], ["quota for reading", quota(c.readQuotaBytesPerSecond, c.readQuotaMode)],
      ["largest message", bytes(c.maxMessageBytes)], ["priority", word(c.priority, "PRIORITY_")], ["repeatable", word(c.repeatable, "REPEATABILITY_")],
      ["ordering window", c.orderingWindow], ["linger", c.linger], ["created", `${age(c.createdAt)} ago`], ["changed", `${age(c.updatedAt)} ago`],
    ])),
    el("h2", {}, "Schema"), showSchema(c.schema, schema),
    el("h2", {}, "Logical shards with traffic"), shards.length ? table("Logical shards", [
      { name: "shard", number: true, of: (s) => s.shard ?? 0 }, { name: "bytes / s", number: true, of: (s) => bytes(s.bytesPerSecond ?? 0) },
      { name: "messages / s", number: true, of: (s) => rate(Number(s.messagesPerSecond ?? 0)) }, { name: "micro-shards", number: true, of: (s) => s.microShards ?? 1 },
      { name: "logs open ahead", number: true, of: (s) => s.logs ?? 0 },
    ], shards) : note("No shard has traffic now, or the control plane that leads is not known."));
}

function showSchema(text, schema) {
  if (schema) {
    return el("div", {}, note(`Version ${schema.version}, ${schema.format}.`), table("Schema", [
      { name: "column", of: (f) => code(f.name) }, { name: "type", of: (f) => f.type }, { name: "nullable", of: (f) => (f.nullable === false ? "no" : "yes") }, { name: "about", of: (f) => f.doc },
    ], schema.fields));
  }
  return note(text === "infer" ? "It will be inferred from the first messages." : "None: messages are bytes. Give one with ", text === "infer" ? null : code("scribe category update NAME --schema infer"));
}

// schemaOf returns the newest version of the text of a category's schemas, null if there is none.
export function schemaOf(text) {
  try {
    return JSON.parse(text).versions?.at(-1) ?? null;
  } catch {
    return null;
  }
}
