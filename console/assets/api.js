// Calls to the process that served this page: the same RPCs and paths that the command line uses. Nothing else is reached.

const store = "scribe-token"; // in sessionStorage: of this tab, and gone with it

export const token = {
  get: () => sessionStorage.getItem(store) ?? "",
  set: (text) => (text ? sessionStorage.setItem(store, text) : sessionStorage.removeItem(store)),
};

// CallError is a refusal or a failure, with what to do about it.
export class CallError extends Error {
  constructor(message, { status = 0, code, title, hint } = {}) {
    super(message);
    Object.assign(this, { status, code, title, hint });
  }
}

const hints = {
  401: ["Who asks is not known", "Give a token: the button Token is at the top."],
  403: ["Not allowed", "Your token may not do that, or see that. An administrator grants rights with “scribe grant”."],
  404: ["Not found", "Tails and queries are answered by processes with the role sqlserver. If this one does not have it, open the console at one that does."],
  429: ["The process is busy", "Try again in a moment."],
  503: ["Not available", "The process or its cell is starting, stopping or away. Try again; “scribe status” says more."],
};

async function request(path, options = {}) {
  const headers = new Headers(options.headers);
  if (token.get()) headers.set("Authorization", `Bearer ${token.get()}`);
  let response;
  try {
    response = await fetch(path, { ...options, headers, cache: "no-store", credentials: "same-origin", referrerPolicy: "no-referrer" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new CallError("The process does not answer.", { code: "unavailable", title: "No connection", hint: "Is it still running?" });
  }
  if (response.ok) return response;
  const error = errorOf(await response.text(), response);
  if (response.status === 401) document.dispatchEvent(new CustomEvent("token-wanted", { detail: error.message }));
  throw error;
}

// errorOf reads an error: an object of the protocol, one of the SQL server, or a text.
function errorOf(text, response) {
  const [title, hint] = hints[response.status] ?? [];
  let message = text.trim() || `${response.status} ${response.statusText}`;
  let more = hint;
  let code;
  try {
    const body = JSON.parse(text);
    const inner = body.error ?? body;
    code = inner.code;
    message = inner.caret ? `${inner.message}\n${inner.caret}` : inner.message || message;
    more = inner.hint || (response.status === 404 ? null : hint); // a 404 that says what is missing needs no more
  } catch { /* it is a text */ }
  return new CallError(message, { status: response.status, code, title, hint: more });
}

// call makes an RPC, such as ControlService/GetStatus.
export async function call(method, message = {}, signal) {
  const response = await request(`/scribe.v1.${method}`, {
    method: "POST", signal, headers: { "Content-Type": "application/json" }, body: JSON.stringify(message),
  });
  return response.json();
}

// get reads an object.
export const get = async (path, signal) => (await request(path, { signal })).json();

// listAll reads all pages of a list that has names, up to a bound.
export async function listAll(method, field, message, signal, most = 10000) {
  const all = [];
  for (let after = ""; ;) {
    const page = await call(method, { ...message, after, limit: 1000 }, signal);
    all.push(...(page[field] ?? []));
    after = page.next || all.at(-1)?.name || "";
    if (!page.more || !after || all.length >= most) return { all, cut: Boolean(page.more) };
  }
}

// sleep waits for some milliseconds, or until the page ends.
export const sleep = (milliseconds, signal) => new Promise((done) => {
  const timer = setTimeout(done, milliseconds);
  signal.addEventListener("abort", () => { clearTimeout(timer); done(); }, { once: true });
});

// ExactNumber is a number as the cell wrote it, which a number of JavaScript would change: large integers, decimals with all their digits.
class ExactNumber {
  constructor(text) { this.text = text; }
  toString() { return this.text; }
  valueOf() { return Number(this.text); }
  toJSON() { return JSON.rawJSON(this.text); } // a browser that has the source of numbers has this, too
}

export const isNumber = (value) => typeof value === "number" || value instanceof ExactNumber;

// parseExactly parses JSON without changing its numbers. An old browser does not tell how they were written, and rounds them.
export const parseExactly = (text) => JSON.parse(text, (_, value, context) =>
  (typeof value === "number" && context?.source !== undefined && String(value) !== context.source ? new ExactNumber(context.source) : value));

// lines yields the objects of JSON lines as they come. A last line with an error is thrown.
// With a form they are asked for by POST.
export async function* lines(path, signal, form) {
  const response = await request(path, { signal, method: form ? "POST" : "GET", body: form, headers: { Accept: "application/x-ndjson" } });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  try {
    for (let rest = ""; ;) {
      const { value, done } = await reader.read();
      if (done) return;
      const parts = (rest + value).split("\n");
      rest = parts.pop();
      for (const part of parts) {
        if (part === "") continue;
        const object = parseExactly(part);
        if (object.error?.code && Object.keys(object).length === 1) throw errorOf(part, { status: 0 });
        yield object;
      }
    }
  } catch (error) {
    if (error instanceof CallError || error.name === "AbortError") throw error;
    throw new CallError("The connection was cut before the end.", { title: "Cut off", hint: "Try again.", code: "cut" });
  } finally {
    reader.cancel().catch(() => {});
  }
}
