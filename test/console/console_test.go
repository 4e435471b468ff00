package console

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"scribe/internal/testkit/sample"
	"scribe/test/program"
)

const accessSchema = `
format: json
fields:
  - {name: ts, type: timestamp}
  - {name: client_ip, type: string}
  - {name: path, type: string}
  - {name: status, type: int32}
  - {name: bytes, type: int64, nullable: true}
`

// hostile is what somebody writes who wants to run code in the console of others, or to make a text look like another.
const hostile = `<script>alert(1)</script><img src=x onerror="alert(2)"><a href="javascript:alert(3)">x</a>` + "\u202etxt.exe\u0007\u001b[31m"

// firstViewBytes bounds what a browser gets to show the first page.
const firstViewBytes = 256 << 10

// startCell is a cell with something to see: an access log with a schema, hostile messages, and a consumer group.
func startCell(t *testing.T) string {
	t.Helper()
	findChromium(t)
	up := program.Serve(t, nil, "up", "--data", filepath.Join(t.TempDir(), "data"), "--listen", "127.0.0.1:0", "--id", "n1")
	t.Cleanup(up.Stop)
	t.Setenv("SCRIBE_SERVER", up.URL)
	file := filepath.Join(t.TempDir(), "access.yaml")
	if err := os.WriteFile(file, []byte(accessSchema), 0o600); err != nil {
		t.Fatal(err)
	}
	program.OK(t, nil, "category", "create", "access", "--schema", file)
	program.OK(t, strings.NewReader(string(sample.AccessJSON())), "produce", "access")
	publish(t, up.URL, "hostile", hostile)
	program.OK(t, nil, "tail", "access", "--from", "earliest", "--group", "audit", "-n", "5")
	return up.URL
}

// publish writes messages over HTTP.
func publish(t *testing.T, server, category string, texts ...string) {
	t.Helper()
	type message struct {
		Text string `json:"text"`
	}
	messages := make([]message, len(texts))
	for i, text := range texts {
		messages[i].Text = text
	}
	body, err := json.Marshal(map[string]any{"category": category, "messages": messages})
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.Post(server+"/scribe.v1.WriteService/Publish", "application/json", strings.NewReader(string(body)))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		t.Fatalf("publish: %s", res.Status)
	}
}

// picture writes what the tab shows, if the test was asked to.
func (b *tab) picture(name string) {
	b.t.Helper()
	if !*screenshots {
		return
	}
	shot, err := chromedp.Run(b.ctx, chromedp.CaptureScreenshot())
	if err != nil {
		b.fail(err)
	}
	if err := os.WriteFile(filepath.Join("..", "..", "docs", "console", name+".png"), shot, 0o600); err != nil {
		b.t.Fatal(err)
	}
}

// TestPages walks through the console as a person would.
func TestPages(t *testing.T) {
	server := startCell(t)
	b := openTab(t, server)

	b.run(chromedp.Navigate(server + "/"))
	b.await(`document.querySelector("#verdict")?.textContent.length > 0 && document.querySelector("section[aria-label=Flows] table") !== null`)
	b.mu.Lock()
	if b.mu.bytes > firstViewBytes || b.mu.bytes == 0 {
		t.Errorf("the first view took %d bytes", b.mu.bytes)
	}
	b.mu.Unlock()
	var status struct{ Health string }
	if err := json.Unmarshal(program.OK(t, nil, "status", "-o", "json"), &status); err != nil {
		t.Fatal(err)
	}
	if got := value[string](b, `document.querySelector("#verdict").textContent`); got != status.Health {
		t.Errorf("the console says %q, the command %q", got, status.Health)
	}
	for !value[bool](b, `[...document.querySelectorAll("section[aria-label=Flows] tbody tr")].some((row) => row.cells[0].textContent === "pages" && row.cells[2].textContent !== "0")`) {
		publish(t, server, "pages", "flows")
	}
	b.picture("overview")

	// From the keyboard alone: past the link that skips, to the second page.
	value[any](b, `document.activeElement.blur()`)
	for _, want := range []string{"skip", "#/overview", "#/categories"} {
		b.run(chromedp.KeyEvent(kb.Tab))
		if got := value[string](b, `document.activeElement.id || document.activeElement.hash`); got != want {
			t.Errorf("the next stop is %q, want %q", got, want)
		}
	}
	b.run(chromedp.KeyEvent(kb.Enter))
	b.await(`location.hash === "#/categories" && [...document.querySelectorAll("td a")].some((a) => a.textContent === "access")`)
	b.await(`document.querySelector("nav a[aria-current]").textContent === "Categories"`)
	b.open("#/categories/access")
	b.await(`document.querySelector("h1").textContent === "access" && document.body.innerText.includes("client_ip") && document.body.innerText.includes("timestamp")`)

	walkTail(t, b, server)
	walkSQL(t, b)

	walkCuts(t, b)

	b.open("#/groups")
	b.await(`[...document.querySelectorAll("td a")].some((a) => a.textContent === "audit")`)
	b.open("#/groups/audit")
	b.await(`document.querySelector("h1").textContent === "Group audit" && document.body.innerText.includes("pointers")`)

	// A narrow screen has no page that is wider than it.
	b.run(chromedp.EmulateViewport(360, 740))
	for _, hash := range []string{"#/overview", "#/categories", "#/sql", "#/groups"} {
		b.open(hash)
		b.await(`document.querySelector("nav a[aria-current]")?.getAttribute("href") === "` + hash + `" && document.querySelector("main h1") !== null && !document.querySelector("main").innerText.includes("Loading …")`)
		if over := value[int](b, `document.documentElement.scrollWidth - innerWidth`); over > 0 {
			t.Errorf("%s is %d pixels wider than a small screen", hash, over)
		}
	}
	light := value[string](b, `getComputedStyle(document.body).backgroundColor`)
	call(b, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: "dark"}}})
	if dark := value[string](b, `getComputedStyle(document.body).backgroundColor`); dark == light {
		t.Errorf("the page is %s, dark or light", dark)
	}
	if lang := value[string](b, `document.documentElement.lang`); lang != "en" {
		t.Errorf("the language is %q", lang)
	}
	if nameless := value[int](b, `[...document.querySelectorAll("button, a, input, textarea")].filter((e) => !(e.textContent.trim() || e.labels?.length)).length`); nameless > 0 {
		t.Errorf("%d controls have no name", nameless)
	}
	b.requireQuiet("400") // a mistake in a query
}

// walkTail reads what is hostile, and what comes while the page is open.
func walkTail(t *testing.T, b *tab, server string) {
	t.Helper()
	b.open("#/tail/hostile?from=earliest")
	b.await(`document.querySelectorAll("#messages tr").length === 1`)
	want := strings.NewReplacer("\u202e", `\u202e`, "\u0007", `\u0007`, "\u001b", `\u001b`).Replace(hostile)
	if got := value[string](b, `document.querySelector("#messages td.wide").textContent`); got != want {
		t.Errorf("a hostile message is shown as %q", got)
	}
	if n := value[int](b, `document.querySelectorAll("#messages script, #messages img, #messages a").length`); n != 0 {
		t.Errorf("a message became %d elements", n)
	}
	publish(t, server, "hostile", "live")
	b.await(`document.querySelector("#messages td.wide").textContent === "live"`)

	b.run(chromedp.Click(chromedp.CSS("#pause")))
	b.await(`document.querySelector("#state").textContent.startsWith("Paused: 2")`)
	many := make([]string, 600)
	for i := range many {
		many[i] = "more"
	}
	publish(t, server, "hostile", many...)
	b.run(chromedp.Click(chromedp.CSS("#pause")))
	b.await(`document.querySelector("#state").textContent.startsWith("Reading: 602")`)
	if rows := value[int](b, `document.querySelectorAll("#messages tr").length`); rows != 500 {
		t.Errorf("the page holds %d rows", rows)
	}

	// Programs in browsers have EventSource, which knows from where to go on.
	id := value[string](b, `new Promise((done, failed) => {
		const source = new EventSource("/v1/tail/hostile?from=earliest&limit=2"), ids = [];
		source.onmessage = (event) => { JSON.parse(event.data); ids.push(event.lastEventId); };
		source.onerror = () => failed(new Error("cut off"));
		source.addEventListener("end", () => { source.close(); done(ids.length === 2 ? ids[1] : ids.join()); });
	})`)
	if !strings.HasPrefix(id, "scribe") {
		t.Errorf("the id of the second event is %q", id)
	}

	b.open("#/tail/access?from=earliest&where=" + "status%20%3E%3D%20500")
	b.await(`document.querySelectorAll("#messages tr").length === 3`)
	b.picture("tail")
	b.open("#/tail/access?where=sttus%20%3E%3D%20500")
	b.await(`document.querySelector("[role=alert]")?.textContent.includes("sttus")`)
}

// walkCuts takes the process away: a tail goes on at its last checkpoint, and an old verdict is not shown as if it were new.
func walkCuts(t *testing.T, b *tab) {
	t.Helper()
	value[bool](b, `(() => {
		const real = window.fetch, rows = () => document.querySelectorAll("#messages tr").length;
		const line = (payload, more) => JSON.stringify({ shard: "1/0/1", lsn: 1, index: 0, time: "now", payload, ...more }) + "\n";
		let read = false;
		const cut = new ReadableStream({ pull: async (to) => {
			if (!read) {
				read = true;
				to.enqueue(new TextEncoder().encode(line("one", { checkpoint: "scribe1.x" }) + line("two")));
				return;
			}
			while (rows() !== 2) await new Promise((done) => setTimeout(done, 5));
			to.error(new TypeError("cut"));
		} });
		window.asked = [];
		window.away = false;
		window.fetch = (path, options) => {
			if (path === "/v1/status" && window.away) return Promise.reject(new TypeError("away"));
			if (path !== "/v1/tail/cut") return real(path, options);
			window.asked.push(options.body.get("from"));
			return Promise.resolve(new Response(window.asked.length === 1 ? cut : line("two") + line("three")));
		};
		return true;
	})()`)
	b.open("#/tail/cut?from=earliest")
	b.await(`document.querySelector("#state")?.textContent === "The tail ended after 3 messages."`)
	if got := value[string](b, `window.asked.join() + ":" + [...document.querySelectorAll("#messages td.wide")].map((cell) => cell.textContent).join()`); got != "earliest,scribe1.x:three,two,one" {
		t.Errorf("a tail that was cut has %q", got)
	}
	const fresh = `["healthy", "degraded"].includes(document.querySelector("#verdict")?.textContent)`
	b.open("#/overview")
	b.await(fresh)
	value[bool](b, `window.away = true`)
	b.await(`document.querySelector("#verdict").textContent.includes(" at ") && document.querySelector("section[aria-label=Health] [role=alert]") !== null`)
	value[bool](b, `window.away = false; true`)
	b.await(fresh)
}

// walkSQL runs queries, and lets the page complete one.
func walkSQL(t *testing.T, b *tab) {
	t.Helper()
	b.open("#/sql?q=" + "SELECT%20date_trunc('hour'%2C%20ts)%20AS%20hour%2C%20count(*)%20AS%20requests%20FROM%20access%20GROUP%20BY%201%20ORDER%20BY%201")
	b.await(`document.querySelectorAll("#result tbody tr").length > 50 && document.querySelector("svg.chart") !== null`)
	b.picture("sql")
	write := func(text string) {
		value[string](b, `document.querySelector("#query").value = ""`)
		b.run(chromedp.SendKeys(chromedp.CSS("#query"), text))
	}
	write("SELECT 9007199254740993 AS large, payload FROM hostile LIMIT 1")
	b.run(chromedp.Click(chromedp.CSS("#run")))
	b.await(`document.querySelector("#result td")?.textContent === "9007199254740993"`)
	if n := value[int](b, `document.querySelectorAll("#result td script, #result td img, #result td a").length`); n != 0 {
		t.Errorf("a value became %d elements", n)
	}
	// What leaves the page has the numbers that came; a text is guarded against spreadsheets, a number is not.
	exported := value[string](b, `Promise.all([import("/console/api.js"), import("/console/sql.js")]).then(([api, sql]) => {
		const rows = [api.parseExactly('{"n": -9007199254740993, "d": 12345678901234567890.50, "t": "=1+1", "l": [0.10, 3]}')];
		return sql.csv(["n", "d", "t", "l"], rows) + sql.json(rows).replaceAll(/\s/g, "");
	})`)
	if want := "n,d,t,l\r\n-9007199254740993,12345678901234567890.50,'=1+1,\"[0.10,3]\"\r\n" + `[{"n":-9007199254740993,"d":12345678901234567890.50,"t":"=1+1","l":[0.10,3]}]`; exported != want {
		t.Errorf("exported is %q, want %q", exported, want)
	}
	write("SELECT pat")
	b.await(`[...document.querySelectorAll("#completion li")].some((e) => e.textContent === "path")`)
	b.run(chromedp.KeyEvent(kb.Enter))
	// The debugging protocol writes the new line although the page has taken the key.
	b.await(`document.querySelector("#query").value.trim() === "SELECT path" && document.querySelector("#completion").hidden`)
	b.run(chromedp.SendKeys(chromedp.CSS("#query"), " FROM access WHERE status = 500"), chromedp.KeyEvent(kb.Enter, chromedp.KeyModifiers(chromedp.ModifierCtrl)))
	b.await(`document.querySelectorAll("#result tbody tr").length === 3 && location.hash.includes("status%20%3D%20500")`)
	write("SELECT pth FROM access")
	b.run(chromedp.Click(chromedp.CSS("#run")))
	b.await(`document.querySelector("[role=alert]")?.textContent.includes("^") && document.querySelector("[role=alert]").textContent.includes("path")`)
}

// TestToken: in a closed cell the console asks who is there, keeps the token in the tab alone, and says what one may not see.
func TestToken(t *testing.T) {
	findChromium(t)
	data := filepath.Join(t.TempDir(), "data")
	up := program.Serve(t, nil, "up", "--secure", "--data", data, "--listen", "127.0.0.1:0")
	defer up.Stop()
	exports, err := os.ReadFile(filepath.Join(data, "secure", "admin.env"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(exports)) {
		if name, text, ok := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "export "), "="); ok {
			t.Setenv(name, strings.Trim(text, `'"`))
		}
	}
	server := os.Getenv("SCRIBE_SERVER")
	program.OK(t, strings.NewReader("one\n"), "produce", "open")
	program.OK(t, strings.NewReader("one\n"), "produce", "hidden")
	reader := strings.TrimSpace(string(program.OK(t, nil, "token", "issue", "--can", "read:open", "--name", "reader")))

	b := openTab(t, server)
	give := func(token string) {
		b.await(`document.querySelector("#ask").open`)
		b.run(chromedp.SendKeys(chromedp.CSS("#ask-text"), token), chromedp.Click(chromedp.CSS(`#ask button[value="use"]`)))
	}
	b.run(chromedp.Navigate(server + "/"))
	give("scribe_wrong")
	b.await(`document.querySelector("#ask-why").textContent.includes("not one of this cell")`)
	give(reader)
	b.await(`document.querySelector("#verdict")?.textContent === "unknown" && document.body.innerText.includes("is for those who look after it")`)
	b.open("#/categories")
	b.await(`document.body.innerText.includes("1 of 1 categories") && !document.body.innerText.includes("hidden")`)
	b.open("#/tail/hidden")
	b.await(`document.querySelector("[role=alert]")?.textContent.includes("may not read category")`)
	b.open("#/tail/open?from=earliest")
	b.await(`document.querySelector("#messages td.wide")?.textContent === "one"`)
	if kept := value[[]string](b, `[sessionStorage.getItem("scribe-token"), String(localStorage.length), document.cookie]`); kept[0] != reader || kept[1] != "0" || kept[2] != "" {
		t.Errorf("the browser keeps %q", kept)
	}
	b.run(chromedp.Click(chromedp.CSS("#token")))
	b.await(`document.querySelector("#ask").open`)
	b.run(chromedp.KeyEvent(kb.Escape)) // whoever looks and leaves keeps what was given before
	b.await(`!document.querySelector("#ask").open`)
	if kept := value[string](b, `sessionStorage.getItem("scribe-token")`); kept != reader {
		t.Errorf("after Escape the token is %q", kept)
	}
	b.run(chromedp.Click(chromedp.CSS("#token")))
	give(os.Getenv("SCRIBE_TOKEN"))
	b.open("#/overview")
	b.await(`["healthy", "degraded"].includes(document.querySelector("#verdict")?.textContent)`)
	b.requireQuiet("401", "403")
}
