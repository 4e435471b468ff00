package test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"testing"

	"scribe/test/program"
)

// tailLine is an object of /v1/tail.
type tailLine struct {
	Payload    *string
	Checkpoint string
}

// openTail asks for a tail over HTTP, which ends with ctx.
func openTail(ctx context.Context, t *testing.T, server, category string, parameters url.Values, header ...string) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, server+"/v1/tail/"+category+"?"+parameters.Encode(), http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = res.Body.Close() })
	return res
}

// nextMessages reads the payloads of some messages, and the last checkpoint up to the one after them.
func nextMessages(t *testing.T, lines *bufio.Scanner, n int) (payloads []string, checkpoint string) {
	t.Helper()
	for len(payloads) < n || checkpoint == "" {
		if !lines.Scan() {
			t.Fatalf("the tail ended after %q: %v", payloads, lines.Err())
		}
		var l tailLine
		if err := json.Unmarshal(lines.Bytes(), &l); err != nil {
			t.Fatalf("%s: %v", lines.Bytes(), err)
		}
		checkpoint = l.Checkpoint
		if l.Payload != nil {
			payloads = append(payloads, *l.Payload)
		}
	}
	return payloads, checkpoint
}

// TestTailOverHTTP: who has no Go reads a category with curl or a browser, live, and resumes where a checkpoint says.
func TestTailOverHTTP(t *testing.T) {
	up := serve(t, nil, "up", "--data", filepath.Join(t.TempDir(), "data"), "--listen", "127.0.0.1:0")
	defer up.Stop()
	publish := func(text string) {
		post(t, up.URL, "WriteService/Publish", `{"category": "greetings", "messages": [{"text": "`+text+`"}]}`, http.StatusOK)
	}
	post(t, up.URL, "ControlService/CreateCategory", `{"category": {"name": "greetings"}}`, http.StatusOK)
	publish("hello")
	publish("world")

	res := openTail(t.Context(), t, up.URL, "greetings", url.Values{"from": {"earliest"}, "until_end": {"1"}})
	if res.StatusCode != http.StatusOK || res.Header.Get("Content-Type") != "application/x-ndjson" {
		t.Fatalf("%s, %v", res.Status, res.Header)
	}
	got, err := io.ReadAll(res.Body)
	if err != nil || strings.Count(string(got), `"payload":`) != 2 || !strings.Contains(string(got), `"checkpoint":"scribe`) {
		t.Errorf("%v: %s", err, got)
	}

	ctx, cancel := context.WithCancel(t.Context())
	live := bufio.NewScanner(openTail(ctx, t, up.URL, "greetings", url.Values{"from": {"earliest"}}).Body)
	payloads, checkpoint := nextMessages(t, live, 2)
	publish("live")
	more, _ := nextMessages(t, live, 1)
	if all := strings.Join(append(payloads, more...), " "); all != "hello world live" {
		t.Errorf("a live tail has %q", all)
	}
	cancel()

	resumed, _ := nextMessages(t, bufio.NewScanner(openTail(t.Context(), t, up.URL, "greetings", url.Values{"from": {checkpoint}, "limit": {"1"}}).Body), 1)
	if resumed[0] != "live" {
		t.Errorf("after the checkpoint comes %q", resumed)
	}
	// A browser names the event that it had last, and gives the URL that it had.
	res = openTail(t.Context(), t, up.URL, "greetings", url.Values{"from": {"earliest"}, "limit": {"1"}}, "Accept", "text/event-stream", "Last-Event-ID", checkpoint)
	got, err = io.ReadAll(res.Body)
	if err != nil || res.Header.Get("Content-Type") != "text/event-stream" || !strings.Contains(string(got), `"payload":"live"`) ||
		!strings.Contains(string(got), "\nid: scribe") || !strings.HasSuffix(string(got), "event: end\ndata: {}\n\n") {
		t.Errorf("%v, %v: %s", err, res.Header, got)
	}

	res = openTail(t.Context(), t, up.URL, "greeting", nil)
	if got, _ := io.ReadAll(res.Body); res.StatusCode != http.StatusNotFound || !strings.Contains(string(got), "greetings") {
		t.Errorf("an unknown category: %s, %s", res.Status, got)
	}
	res = openTail(t.Context(), t, up.URL, "greetings", url.Values{"from": {strings.Replace(checkpoint, "scribe", "scribe9", 1)}})
	if got, _ := io.ReadAll(res.Body); res.StatusCode != http.StatusBadRequest {
		t.Errorf("a wrong checkpoint: %s, %s", res.Status, got)
	}
}

// TestTailOverHTTPWhere: a predicate and keys choose the messages that a tail is given.
func TestTailOverHTTPWhere(t *testing.T) {
	c := accessLog(t)
	res := openTail(t.Context(), t, c.read, "access", url.Values{"from": {"earliest"}, "until_end": {"1"}, "where": {"status >= 500"}})
	got, err := io.ReadAll(res.Body)
	if err != nil || strings.Count(string(got), `"payload":`) != 3 || strings.Count(string(got), `\"status\":500`)+strings.Count(string(got), `\"status\": 500`) != 3 {
		t.Errorf("%v: %.2000s", err, got)
	}
	res = openTail(t.Context(), t, c.read, "access", url.Values{"where": {"sttus >= 500"}})
	if got, _ := io.ReadAll(res.Body); res.StatusCode != http.StatusBadRequest || !strings.Contains(string(got), "sttus") {
		t.Errorf("an unknown column: %s, %s", res.Status, got)
	}
}

// TestTailOverHTTPRights: a tail needs the right to read, and ends with it. What one may not read is refused in the words for what does not exist.
func TestTailOverHTTPRights(t *testing.T) {
	c := startClosed(t)
	program.OK(t, nil, "category", "create", "web.access")
	program.OK(t, nil, "category", "create", "secret")
	reader, writer := c.issue("--can", "read:web.*"), c.issue("--can", "write,query:web.*")
	c.as(c.admin, func() { program.OK(t, strings.NewReader("one\n"), "produce", "web.access") })
	for token, want := range map[string]int{reader: http.StatusOK, writer: http.StatusForbidden, "": http.StatusUnauthorized} {
		if status, text := c.get(http.MethodGet, "/v1/tail/web.access?from=earliest&until_end=1", token, ""); status != want || want == http.StatusOK != strings.Contains(text, `"payload":"one"`) {
			t.Errorf("a tail with %.12q: %d, want %d: %s", token, status, want, text)
		}
	}
	status, hidden := c.get(http.MethodGet, "/v1/tail/secret", reader, "")
	unknown, none := c.get(http.MethodGet, "/v1/tail/nosuch", reader, "")
	live := bufio.NewScanner(openTail(t.Context(), t, c.URL, "web.access", url.Values{"from": {"earliest"}}, "Authorization", "Bearer "+reader).Body)
	nextMessages(t, live, 1)
	program.OK(t, nil, "token", "revoke", strings.Split(reader, "_")[1])
	last := ""
	for live.Scan() {
		last = live.Text()
	}
	if live.Err() == nil || !strings.HasPrefix(last, `{"error":{"code":"unauthenticated"`) {
		t.Errorf("after its token was revoked a tail ends with %v, %q", live.Err(), last)
	}
	if status != http.StatusForbidden || unknown != status || strings.ReplaceAll(hidden, "secret", "nosuch") != none {
		t.Errorf("%d %s\n%d %s", status, hidden, unknown, none)
	}
}

// TestQueryResumes: a query over HTTP that follows tells how far it is, and one that begins there gets each row that follows, once.
func TestQueryResumes(t *testing.T) {
	up := serve(t, nil, "up", "--data", filepath.Join(t.TempDir(), "data"), "--listen", "127.0.0.1:0")
	defer up.Stop()
	c := &cell{write: up.URL, read: up.URL}
	produce(t, c, "events", []byte("{\"n\":0}\n{\"n\":1}\n"))
	ok(t, nil, "schema", "infer", "--category", "events", "--set", "--server", up.URL)
	// rows follows from a place, and returns the numbers of some rows and the place after them.
	rows := func(from string, most int) (numbers []int, checkpoint string) {
		ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
		defer cancel()
		query := url.Values{"sql": {"SELECT n FROM events WHERE n <> 3"}, "follow": {"1"}, "checkpoints": {"1"}, "format": {"jsonl"}, "from": {from}}
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, up.URL+"/v1/query?"+query.Encode(), http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = res.Body.Close() }()
		for in := bufio.NewScanner(res.Body); in.Scan(); {
			var line struct {
				N          *int
				Checkpoint string `json:"_checkpoint"`
			}
			switch err := json.Unmarshal(in.Bytes(), &line); {
			case len(in.Bytes()) == 0: // a heartbeat
			case err != nil:
				t.Fatalf("%s: %v", in.Bytes(), err)
			case line.N != nil:
				numbers = append(numbers, *line.N)
			case len(numbers) >= most:
				return numbers, line.Checkpoint
			}
		}
		t.Fatalf("the answer from %q has ended after %v", from, numbers)
		return nil, ""
	}
	got, place := rows("earliest", 2)
	for _, more := range []string{"{\"n\":2}\n", "{\"n\":3}\n{\"n\":4}\n", "{\"n\":5}\n"} {
		produce(t, c, "events", []byte(more))
		next, after := rows(place, 1)
		got, place = append(got, next...), after
	}
	if text := fmt.Sprint(got); text != "[0 1 2 4 5]" {
		t.Errorf("all answers have %s", text)
	}
}
