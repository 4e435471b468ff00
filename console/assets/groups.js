// Groups: consumer groups, their members and how far they are behind.
import { call, listAll } from "./api.js";
import { age, bytes, duration, el, facts, fill, note, table, word } from "./dom.js";

export async function groups(body, { name, heading }, signal) {
  return name ? showGroup(body, name, heading, signal) : listGroups(body, signal);
}

async function listGroups(body, signal) {
  const { all, cut } = await listAll("GroupService/ListGroups", "groups", {}, signal);
  if (all.length === 0) {
    fill(body, el("div", { class: "card" }, note("There is no consumer group that you may see. A first member makes one:"), el("pre", {}, "scribe tail greetings --from earliest --group audit")));
    return;
  }
  fill(body, table("Consumer groups", [
    { name: "group", of: (g) => el("a", { href: `#/groups/${encodeURIComponent(g.name)}` }, g.name) },
    { name: "category", of: (g) => el("a", { href: `#/categories/${encodeURIComponent(g.category)}` }, g.category) },
    { name: "members", number: true, of: (g) => g.members ?? 0 }, { name: "shares by", of: (g) => word(g.sharing, "GROUP_SHARING_") },
    { name: "buckets", number: true, of: (g) => g.buckets }, { name: "age", number: true, of: (g) => age(g.createdAt) },
  ], all), note(`${all.length}${cut ? " or more" : ""} groups.`));
}

const lagText = (lag) => (Number(lag?.pointers ?? 0) ? `${lag.pointers} pointers${Number(lag.bytes ?? 0) ? `, about ${bytes(lag.bytes)}` : ""}${lag.time ? `, ${duration(parseFloat(lag.time))}` : ""}` : "none");

async function showGroup(body, name, heading, signal) {
  fill(heading, "Group ", name);
  const d = await call("GroupService/DescribeGroup", { group: name, brief: true }, signal);
  const members = d.members ?? [];
  fill(body, 
    el("div", { class: "card" }, facts([
      ["category", el("a", { href: `#/categories/${encodeURIComponent(d.group.category)}` }, d.group.category)], ["lag", lagText(d.lag)],
      ["members", `${members.length}${d.recommendedMembers ? `, ${d.recommendedMembers} would do` : ""}`], ["why", d.recommendation],
      ["shares by", word(d.group.sharing, "GROUP_SHARING_")], ["buckets", d.group.buckets], ["incomplete", d.incomplete],
    ])),
    el("h2", {}, "Members"), members.length ? table("Members", [
      { name: "member", of: (m) => m.member }, { name: "is", of: (m) => m.description }, { name: "buckets", number: true, of: (m) => m.buckets ?? 0 },
      { name: "lag", of: (m) => lagText(m.lag) }, { name: "reads / s", number: true, of: (m) => bytes(m.status?.bytesPerSecond ?? 0) }, { name: "joined", number: true, of: (m) => `${age(m.joinedAt)} ago` },
    ], members) : note("Nobody is reading. Members come back with the same group name, and go on where it stands."));
}
