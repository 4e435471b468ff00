// The shell: which page is shown, and the token. A page is a function that gets the element to fill, the parameters of the address, and a
// signal that ends with the page; it returns nothing, and throws what could not be loaded.
import { token } from "./api.js";
import { categories } from "./categories.js";
import { el, failure, fill, note } from "./dom.js";
import { groups } from "./groups.js";
import { overview } from "./overview.js";
import { sql } from "./sql.js";
import { tail } from "./tail.js";

const pages = { overview, categories, tail, sql, groups };
const titles = { overview: "Overview", categories: "Categories", tail: "Tail", sql: "SQL", groups: "Groups" };
const main = document.getElementById("main");
let life = new AbortController();

// show opens the page that the address names: #/PAGE/NAME?PARAMETERS.
async function show(focus) {
  life.abort();
  life = new AbortController();
  const { signal } = life;
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split(/\?(.*)/s);
  const [wanted, ...rest] = path.split("/");
  const name = Object.hasOwn(pages, wanted) ? wanted : "overview";
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === `#/${name}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${titles[name]} – Scribe`;
  const body = el("div", {}, note("Loading …"));
  fill(main, el("h1", {}, titles[name]), body);
  if (focus) main.focus();
  try {
    await pages[name](body, { name: decode(rest.join("/")), parameters: new URLSearchParams(query), heading: main.firstChild }, signal);
  } catch (error) {
    if (!signal.aborted) fill(body, failure(error));
  }
}

function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

const ask = document.getElementById("ask");
const askText = document.getElementById("ask-text");
const tokenButton = document.getElementById("token");

function askToken(why) {
  document.getElementById("ask-why").textContent = why;
  if (ask.open) return; // somebody may be writing
  ask.returnValue = "";
  askText.value = "";
  ask.showModal();
  askText.focus();
}

function nameButton() {
  tokenButton.textContent = token.get() ? "Token: given" : "Token";
}

tokenButton.addEventListener("click", () => askToken(token.get() ? "A token is in use." : "No token is in use."));
document.addEventListener("token-wanted", (event) => askToken(event.detail));
ask.addEventListener("close", () => {
  const text = askText.value.trim();
  askText.value = "";
  if (ask.returnValue === "use" && text) token.set(text);
  else if (ask.returnValue === "forget") token.set("");
  else return;
  nameButton();
  show(false);
});
document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
window.addEventListener("hashchange", () => show(true));
nameButton();
show(false);
