package test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"scribe/test/program"
)

// host is a machine with an agent that reads what its programs write, beside a cell in one process.
type host struct {
	t         *testing.T
	dir       string // of the files that are followed
	cell      *program.Process
	agent     *program.Process
	args      []string // of the agent
	addresses map[string]string
}

// inputsConfig is an agent with every input, on free ports. Whoever reads it in one piece sees what its fields do, so it has those only
// that a test needs.
const inputsConfig = `
inputs:
  follow:
    - {name: files, paths: ["%s"], pattern: '/(?P<name>[a-z]+)\.log', category: "file.{name}", interval: 10ms, batch: 4KiB, path_attribute: path}
  syslog:
    - {name: sys, udp: "127.0.0.1:0", tcp: {address: "127.0.0.1:0"}, category: "sys.{app}", format: message}
  otlp:
    - {name: telemetry, listen: {address: "127.0.0.1:0"}, category: "otel.{service.name}"}
  lines:
    - {name: posts, listen: {address: "127.0.0.1:0"}}
`

func startHost(t *testing.T, glob string) *host {
	t.Helper()
	dir := t.TempDir()
	h := &host{t: t, dir: filepath.Join(dir, "files")}
	if err := os.Mkdir(h.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(dir, "agent.yaml")
	if err := os.WriteFile(config, fmt.Appendf(nil, inputsConfig, h.dir+"/"+glob), 0o600); err != nil {
		t.Fatal(err)
	}
	h.cell = serve(t, nil, "up", "--data", filepath.Join(dir, "data"), "--listen", "127.0.0.1:0")
	h.args = []string{"agent", "--config", config, "--upstream", h.cell.URL, "--spool", filepath.Join(dir, "spool"), "--listen", "127.0.0.1:0"}
	h.start()
	return h
}

// start runs the agent and waits until its inputs can be reached.
func (h *host) start() {
	h.t.Helper()
	h.agent = serve(h.t, []string{"SCRIBE_LOG_LEVEL=info"}, h.args...)
	h.addresses = map[string]string{}
	h.await("the inputs listen", func() bool {
		for _, name := range []string{"input=sys udp", "input=sys tcp", "input=telemetry address", "input=posts address"} {
			input, kind, _ := strings.Cut(name, " ")
			if m := regexp.MustCompile(input + ` ` + kind + `=(\S+)`).FindStringSubmatch(h.agent.Log.String()); m != nil {
				h.addresses[strings.TrimPrefix(input, "input=")+" "+kind] = m[1]
			}
		}
		return len(h.addresses) == 4
	})
}

// await looks again and again.
func (h *host) await(what string, done func() bool) {
	h.t.Helper()
	end := time.After(waitLimit)
	for !done() {
		select {
		case <-time.After(5 * time.Millisecond):
		case <-h.agent.Done:
			h.t.Fatalf("the agent ended while waiting until %s: %v", what, h.agent.Err)
		case <-end:
			h.t.Fatalf("waited in vain until %s", what)
		}
	}
}

// taken waits until an input has given so many messages to the agent since that was started.
func (h *host) taken(kind string, n float64) {
	h.t.Helper()
	var got float64
	h.await(fmt.Sprintf("%v messages of %s are taken", n, kind), func() bool {
		m, err := program.Scrape(h.t.Context(), h.agent.URL)
		if err != nil {
			h.t.Fatal(err)
		}
		got = m.Sum("scribe_inputs_" + kind + "_messages_total")
		return got >= n
	})
	if got > n {
		h.t.Fatalf("%v messages of %s are taken, want %v", got, kind, n)
	}
}

// append writes lines that tell where they were written.
func (h *host) append(name, text string, from, to int) {
	h.t.Helper()
	f, err := os.OpenFile(filepath.Join(h.dir, name), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		h.t.Fatal(err)
	}
	if _, err := f.Write(numbered(text, from, to)); err != nil {
		h.t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		h.t.Fatal(err)
	}
}

func numbered(text string, from, to int) []byte {
	var b bytes.Buffer
	for i := from; i < to; i++ {
		fmt.Fprintf(&b, "%s %06d\n", text, i)
	}
	return b.Bytes()
}

func (h *host) rename(from, to string) {
	h.t.Helper()
	if err := os.Rename(filepath.Join(h.dir, from), filepath.Join(h.dir, to)); err != nil {
		h.t.Fatal(err)
	}
}

func (h *host) send(network, address, text string) {
	h.t.Helper()
	c, err := (&net.Dialer{}).DialContext(h.t.Context(), network, address)
	if err != nil {
		h.t.Fatal(err)
	}
	if _, err := io.WriteString(c, text); err != nil {
		h.t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		h.t.Fatal(err)
	}
}

func (h *host) post(url, kind, body string) string {
	h.t.Helper()
	res, err := http.Post(url, kind, strings.NewReader(body))
	if err != nil {
		h.t.Fatal(err)
	}
	answer, err := io.ReadAll(res.Body)
	_ = res.Body.Close()
	if err != nil || res.StatusCode != http.StatusOK {
		h.t.Fatalf("POST %s: %s %s (%v)", url, res.Status, answer, err)
	}
	return strings.TrimSpace(string(answer))
}

// drained ends the agent, forwards what is left, and says so.
func (h *host) drained() {
	h.t.Helper()
	h.agent.Stop()
	if r := cli(h.t, nil, append(slices.Clone(h.args), "--drain")...); r.Code != 0 || len(r.Stdout) > 0 {
		h.t.Fatalf("--drain: exit code %d\n%s%s", r.Code, r.Stdout, r.Stderr)
	}
}

// TestInputs writes to every input of an agent and reads it back, byte for byte: files through both ways of rotation and a restart of
// the agent, syslog, OTLP and lines.
func TestInputs(t *testing.T) {
	h := startHost(t, "*.log")

	h.append("app.log", "app", 0, 100)
	h.append("cut.log", "cut", 0, 100)
	h.taken("follow", 200)
	// By renaming, with a writer that still has the old file, and by copying and cutting.
	h.append("app.log", "app", 100, 150)
	h.rename("app.log", "app.log.1")
	h.append("app.log.1", "app", 150, 200)
	h.append("app.log", "app", 200, 300)
	h.append("cut.log.1", "cut", 0, 100)
	if err := os.Truncate(filepath.Join(h.dir, "cut.log"), 0); err != nil {
		t.Fatal(err)
	}
	h.append("cut.log", "cut", 100, 150)
	h.taken("follow", 450)

	h.send("udp", h.addresses["sys udp"], "<13>1 2026-01-02T03:04:05Z web sshd 17 - - by UDP")
	h.taken("syslog", 1)
	h.send("tcp", h.addresses["sys tcp"], "<13>Jan  2 03:04:06 web sshd: by TCP\n54 <13>1 2026-01-02T03:04:07Z web sshd - - - in\ntwo lines")
	h.taken("syslog", 3)
	otlp := `{"resourceLogs":[{"resource":{"attributes":[{"key":"service.name","value":{"stringValue":"shop"}}]},
		"scopeLogs":[{"logRecords":[{"severityText":"WARN","body":{"stringValue":"a text"}},{"body":{"kvlistValue":{"values":[{"key":"n","value":{"intValue":"7"}}]}}}]}]}]}`
	if got := h.post("http://"+h.addresses["telemetry address"]+"/v1/logs", "application/json", otlp); got != "{}" {
		t.Errorf("OTLP: %s", got)
	}
	for _, address := range []string{"http://" + h.addresses["posts address"], h.agent.URL} {
		if got := h.post(address+"/v1/lines/posted", "text/plain", "one\n\nthree"); got != `{"accepted":3}` {
			t.Errorf("lines: %s", got)
		}
	}

	// While nobody looks a file is rotated twice.
	h.agent.Stop()
	h.append("app.log", "app", 300, 350)
	h.rename("app.log", "app.log.2")
	h.append("app.log", "app", 350, 400)
	h.append("cut.log", "cut", 150, 200)
	h.start()
	h.taken("follow", 150)
	h.append("new.log", "new", 0, 10)
	h.taken("follow", 160)
	h.drained()

	c := &cell{read: h.cell.URL}
	for category, want := range map[string]string{
		"file.app": string(numbered("app", 0, 400)), "file.cut": string(numbered("cut", 0, 200)), "file.new": string(numbered("new", 0, 10)),
		"sys.sshd": "by UDP\nby TCP\nin\ntwo lines\n", "otel.shop": "a text\n{\"n\":7}\n", "posted": "one\n\nthree\none\n\nthree\n",
	} {
		sameBytes(t, category, tail(t, c, category), []byte(want))
	}
	one := string(ok(t, nil, "tail", "otel.shop", "--server", h.cell.URL, "--from", "earliest", "--until-end", "-o", "jsonl", "-n", "1"))
	if !strings.Contains(one, `"severity":"WARN"`) || !strings.Contains(one, `"resource.service.name":"shop"`) {
		t.Errorf("a record is printed as %s", one)
	}
}

// TestFollowThroughKills kills the agent with -9 in the middle of a file, again and again, while the file is written to and rotated.
// Every line arrives, since the glob matches the rotated names as well; those since the last saved position may do so twice.
func TestFollowThroughKills(t *testing.T) {
	h := startHost(t, "*.log*")
	const rounds, lines = 4, 20_000
	for round := range rounds {
		h.append("app.log", "app", round*lines, (round+1)*lines)
		h.await("the agent is in the middle of the file", func() bool {
			m, err := program.Scrape(t.Context(), h.agent.URL)
			if err != nil {
				t.Fatal(err)
			}
			return m.Sum("scribe_inputs_follow_messages_total") >= 500
		})
		h.agent.Kill()
		if round%2 == 1 {
			h.rename("app.log", fmt.Sprintf("app.log.%d", round))
		}
		h.start()
	}
	h.append("app.log", "app", rounds*lines, rounds*lines+10)
	missing := map[string]bool{}
	for line := range strings.Lines(string(numbered("app", 0, rounds*lines+10))) {
		missing[line] = true
	}
	reader, stdout := launch(t, nil, "tail", "file.app", "--server", h.cell.URL, "--from", "earliest")
	hang := time.AfterFunc(waitLimit, reader.Kill)
	r := bufio.NewReader(stdout)
	for len(missing) > 0 {
		line, err := r.ReadString('\n')
		if err != nil {
			t.Fatalf("%d lines are lost", len(missing))
		}
		delete(missing, line)
	}
	hang.Stop()
	go func() { _, _ = io.Copy(io.Discard, r) }() // lines that are repeated
	reader.Kill()
	h.drained()
	total := 0
	for line := range strings.Lines(string(tail(t, &cell{read: h.cell.URL}, "file.app"))) {
		total++
		var i int
		if n, err := fmt.Sscanf(line, "app %06d\n", &i); n != 1 || err != nil || i < 0 || i >= rounds*lines+10 {
			t.Fatalf("%q was never written", line)
		}
	}
	t.Logf("%d lines, %d of them repeated", rounds*lines+10, total-rounds*lines-10)
}

// TestDrain: what an agent could not forward is counted by category, with exit code 6, and forwarded when the cell is there.
func TestDrain(t *testing.T) {
	h := startHost(t, "*.log")
	h.agent.Stop()
	away := program.URL(program.Reserve(t))
	there := h.args
	h.args = append(slices.Clone(there), "--upstream", away)
	h.start()
	// Taken all the same: it is on the host's disk.
	if got := h.post(h.agent.URL+"/v1/lines/kept", "text/plain", "one\ntwo\n"); got != `{"accepted":2}` {
		t.Fatal(got)
	}
	h.append("app.log", "app", 0, 5)
	h.taken("follow", 5)
	h.agent.Kill()
	r := program.RunWith(t, program.ServerEnvironment(h.args), nil, append(slices.Clone(h.args), "--drain", "--drain-timeout", "300ms")...)
	if r.Code != 6 || !bytes.Contains(r.Stdout, []byte("kept\t2\t")) || !bytes.Contains(r.Stdout, []byte("file.app\t5\t")) || !bytes.Contains(r.Stderr, []byte("7 messages")) {
		t.Fatalf("--drain with nobody there: exit code %d\n%s%s", r.Code, r.Stdout, r.Stderr)
	}
	h.args = there
	if r := program.RunWith(t, program.ServerEnvironment(h.args), nil, append(slices.Clone(h.args), "--drain")...); r.Code != 0 || len(r.Stdout) > 0 {
		t.Fatalf("--drain: exit code %d\n%s%s", r.Code, r.Stdout, r.Stderr)
	}
	c := &cell{read: h.cell.URL}
	sameBytes(t, "lines", tail(t, c, "kept"), []byte("one\ntwo\n"))
	sameBytes(t, "a file", tail(t, c, "file.app"), numbered("app", 0, 5))
}

// TestBadInputs: an agent that can't be right names the field, and one that finds a port taken ends.
func TestBadInputs(t *testing.T) {
	config := filepath.Join(t.TempDir(), "agent.yaml")
	run := func(text string) program.Result {
		if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return cli(t, nil, "agent", "--config", config, "--listen", "127.0.0.1:0", "--spool", filepath.Join(t.TempDir(), "spool"))
	}
	r := run("inputs: {syslog: [{tcp: {address: nowhere}, category: \"{nope}\"}], lines: [{}]}")
	for _, want := range []string{"inputs.syslog[0].tcp.address:", "inputs.syslog[0].category:", "inputs.lines[0].listen.address:"} {
		if r.Code != 2 || !bytes.Contains(r.Stderr, []byte(want)) {
			t.Errorf("exit code %d, want 2 and %q:\n%s", r.Code, want, r.Stderr)
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	r = run(fmt.Sprintf("inputs: {otlp: [{listen: {address: %q}}]}", l.Addr()))
	if r.Code != 1 || !bytes.Contains(r.Stderr, []byte(": start inputs: otlp otlp: listen ")) || !bytes.Contains(r.Stderr, []byte(l.Addr().String())) {
		t.Errorf("a port that is taken: exit code %d\n%s", r.Code, r.Stderr)
	}
	if len(r.Stdout) > 0 {
		t.Errorf("a port that is taken: it says %s", r.Stdout)
	}
}
