package prometheus

import (
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"scribe/test/program"
)

// Jobs of Prometheus: the cell and the agent that are harmed, and two cells beside them that stay well.
const (
	jobCell, jobAgents, jobNode, jobSecure = "scribe", "scribe-agents", "scribe-node", "scribe-secure"
)

// held is how long a condition must hold in the copy of the rules before its alert fires: longer than a scrape takes on a busy machine.
const held = 4 * time.Second

// span is what rates and offsets look back over in the copy of the rules.
const span = "10s"

// watched are the processes, and the Prometheus that scrapes them.
type watched struct {
	metadata, roles, agent, node, secure *program.Process
	blobs                                string // folder of the store of the cell that is harmed
	api                                  string // of Prometheus
}

// TestAlertsInPlace: while all is well no alert fires, and every dashboard shows something. Then the store fails, a blob is lost, the control
// plane is killed, the last process of the cell is killed: each time exactly the alerts fire that say so.
func TestAlertsInPlace(t *testing.T) {
	requireTool(t, "prometheus")
	t.Parallel()
	w := startWatched(t)
	well := time.Now()
	w.sendTraffic(t)
	w.awaitEvaluation(t, well)
	w.checkDashboards(t)
	w.checkFired(t, "while all is well", nil)

	// The folder of the store is away, as an unmounted disk is. What was to be stored waits, and is stored when it is back.
	var known alerts
	aside := w.blobs + ".aside"
	rename(t, w.blobs, aside)
	writeFile(t, w.blobs, "not a folder")
	input := filepath.Join(t.TempDir(), "input")
	writeFile(t, input, "waits\n")
	waiting, out := program.Launch(t, nil, "produce", "web", input, "--server", w.roles.URL)
	go func() { _, _ = io.Copy(io.Discard, out) }()
	known = w.awaitAlerts(t, known,
		alert{"ScribeBlobStoreFails", jobCell, host(w.roles)},
		alert{"ScribeProcessFailing", jobCell, host(w.roles)})
	w.checkFired(t, "when the store failed", known)
	if err := os.Remove(w.blobs); err != nil {
		t.Fatal(err)
	}
	rename(t, aside, w.blobs)
	select {
	case <-waiting.Done:
		if waiting.Err != nil {
			t.Errorf("what waited for the store was not stored: %v\n%s", waiting.Err, waiting.Log)
		}
	case <-time.After(program.WaitLimit):
		t.Fatalf("what waited for the store did not end:\n%s", waiting.Log)
	}

	// A blob is lost that nobody has read yet, so no cache has it.
	before := listFiles(t, w.blobs)
	program.OK(t, strings.NewReader("lost\n"), "produce", "lost", "--server", w.roles.URL)
	for _, file := range listFiles(t, w.blobs) {
		if !slices.Contains(before, file) {
			if err := os.Remove(file); err != nil {
				t.Fatal(err)
			}
		}
	}
	program.Run(t, nil, "tail", "lost", "--server", w.roles.URL, "--from", "earliest", "--until-end") // ends with a gap, or an error
	known = w.awaitAlerts(t, known, alert{"ScribePayloadsUnreadable", jobCell, ""})
	w.checkFired(t, "when a blob was away", known)

	// Nobody answers for the metadata. Retention can't renew its lease there, and the process tells that its membership is late.
	w.metadata.Kill()
	known = append(known, alert{"ScribeRetentionLeaderMissing", jobCell, ""}, alert{"ScribeProcessFailing", jobCell, host(w.roles)})
	known = w.awaitAlerts(t, known,
		alert{"ScribeProcessDown", jobCell, host(w.metadata)},
		alert{"ScribeControlPlaneUnreachable", jobCell, host(w.roles)})
	w.checkFired(t, "when the control plane was killed", known)

	// The agent has nobody to forward to.
	w.roles.Kill()
	program.OK(t, strings.NewReader("kept\n"), "produce", "web", "--server", w.agent.URL, "--ack", "none")
	known = w.awaitAlerts(t, known,
		alert{"ScribeProcessDown", jobCell, host(w.roles)},
		alert{"ScribeAgentUpstreamAway", jobAgents, host(w.agent)})
	w.checkFired(t, "when the cell was away", known)

	w.checkNames(t)
	// What ended long ago does not fire any more.
	await(t, func() string {
		for _, a := range w.queryAlerts(t, `ALERTS{alertstate="firing"}`) {
			if a.name == "ScribeBlobStoreFails" {
				return fmt.Sprint("the store works again, and fires: ", a)
			}
		}
		return ""
	})
}

func host(p *program.Process) string {
	_, addr, _ := strings.Cut(p.URL, "://")
	return addr
}

func rename(t testing.TB, from, to string) {
	t.Helper()
	if err := os.Rename(from, to); err != nil {
		t.Fatal(err)
	}
}

func listFiles(t testing.TB, dir string) (files []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			files = append(files, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// startWatched starts everything, and returns when Prometheus scrapes all of it.
func startWatched(t *testing.T) *watched {
	w := &watched{blobs: filepath.Join(t.TempDir(), "blobs")}
	type starting struct {
		process **program.Process
		args    []string
		out     io.Reader
	}
	metadata, secureData, node := program.Reserve(t), t.TempDir(), program.NodeAddress(t)
	starts := []starting{
		{process: &w.metadata, args: []string{"serve", "--roles", "controlplane,metalog", "--listen", metadata}},
		{process: &w.roles, args: []string{
			"serve", "--roles", "batcher,writeproxy,readstream,readproxy,retention,sequencer,sqlserver", "--blob-path", w.blobs, "--auto-create",
			"--control", "http://" + metadata, "--metalog", "http://" + metadata, "--listen", program.Reserve(t),
		}},
		{process: &w.node, args: []string{"up", "--node", "n1", "--cluster", "n1=" + node}},
		{process: &w.secure, args: []string{"up", "--secure", "--listen", program.Reserve(t), "--data", secureData}},
	}
	for i := range starts {
		s := &starts[i]
		if !slices.Contains(s.args, "--data") {
			s.args = append(s.args, "--data", t.TempDir())
		}
		*s.process, s.out = program.Launch(t, nil, s.args...)
	}
	for _, s := range starts {
		(*s.process).AwaitReady(s.out)
	}
	w.agent = program.Serve(t, nil, "agent", "--upstream", w.roles.URL, "--spool", t.TempDir(), "--listen", program.Reserve(t))
	w.startPrometheus(t, filepath.Join(secureData, "secure"))
	return w
}

// startPrometheus starts it with the deployed rules, whose times are short. It scrapes the secure cell as docs/security.md says.
func (w *watched) startPrometheus(t *testing.T, secure string) {
	dir, addr := t.TempDir(), program.Reserve(t)
	for _, name := range ruleFiles {
		text := readText(t, deployed("prometheus", name))
		text = regexp.MustCompile(`for: [0-9]+[mh]\n`).ReplaceAllString(text, "for: "+held.String()+"\n")
		text = regexp.MustCompile(`\[[0-9]+m\]`).ReplaceAllString(text, "["+span+"]")
		text = regexp.MustCompile(`offset [0-9]+m`).ReplaceAllString(text, "offset "+span)
		writeFile(t, filepath.Join(dir, name), text)
	}
	token := regexp.MustCompile(`(?m)^export SCRIBE_TOKEN=(\S+)$`).FindStringSubmatch(readText(t, filepath.Join(secure, "admin.env")))
	if token == nil {
		t.Fatal("admin.env has no token")
	}
	type object map[string]any
	job := func(name string, more object, processes ...*program.Process) object {
		j := object{"job_name": name}
		maps.Copy(j, more)
		var targets []string
		for _, p := range processes {
			targets = append(targets, host(p))
		}
		j["static_configs"] = []object{{"targets": targets}}
		return j
	}
	config, err := json.Marshal(object{ // JSON is YAML
		"global":     object{"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "500ms"},
		"rule_files": ruleFiles,
		"scrape_configs": []object{
			job(jobCell, nil, w.metadata, w.roles), job(jobAgents, nil, w.agent), job(jobNode, nil, w.node),
			job(jobSecure, object{"scheme": "https", "tls_config": object{"ca_file": filepath.Join(secure, "ca.pem")}, "authorization": object{"credentials": token[1]}}, w.secure),
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(dir, "prometheus.yml"), string(config))
	p := program.Other(t, "prometheus", "--config.file", filepath.Join(dir, "prometheus.yml"), "--storage.tsdb.path", filepath.Join(dir, "data"), "--web.listen-address", addr)
	w.api = "http://" + addr + "/api/v1/"
	await(t, func() string {
		select {
		case <-p.Done:
			t.Fatalf("prometheus ended: %v\n%s", p.Err, p.Log)
		default:
		}
		up, err := w.query(`sum(up == 1)`)
		if err != nil || len(up) != 1 || up[0].value != "5" {
			return fmt.Sprintf("5 processes are to be scraped: %v, %v", up, err)
		}
		return ""
	})
}

// sendTraffic writes and reads a category in each cell, so that what counts traffic has something to show.
func (w *watched) sendTraffic(t *testing.T) {
	lines := strings.Repeat("a line\n", 100)
	program.OK(t, strings.NewReader(lines), "produce", "web", "--server", w.agent.URL, "--ack", "spooled")
	program.OK(t, strings.NewReader(lines), "produce", "web", "--server", w.node.URL)
	for _, server := range []string{w.roles.URL, w.node.URL} {
		await(t, func() string {
			r := program.Run(t, nil, "tail", "web", "--server", server, "--from", "earliest", "--until-end")
			if n := strings.Count(string(r.Stdout), "\n"); n < 100 {
				return fmt.Sprintf("%s has %d lines of 100: %s", server, n, r.Stderr) // the agent may still have to forward them
			}
			return ""
		})
	}
}

// awaitEvaluation returns when every rule was evaluated after its condition could have held for long enough since a time.
func (w *watched) awaitEvaluation(t *testing.T, since time.Time) {
	t.Helper()
	await(t, func() string {
		var rules struct {
			Groups []struct {
				Name           string    `json:"name"`
				LastEvaluation time.Time `json:"lastEvaluation"`
			} `json:"groups"`
		}
		if err := w.get("rules", nil, &rules); err != nil {
			return err.Error()
		}
		for _, g := range rules.Groups {
			if g.LastEvaluation.Before(since.Add(held + 2*time.Second)) {
				return g.Name + " was not evaluated lately"
			}
		}
		return ""
	})
}

// checkDashboards: every expression of every dashboard has a result.
func (w *watched) checkDashboards(t *testing.T) {
	for _, d := range readDashboards(t) {
		for _, p := range d.Panels {
			for _, target := range p.Targets {
				expr := chosen(target.Expr, span)
				if got, err := w.query(expr); err != nil || len(got) == 0 {
					t.Errorf("%s, %q shows nothing: %s: %v", d.file, p.Title, expr, err)
				}
			}
		}
	}
}

// checkNames: the program has every metric that a rule or a dashboard names, and the rules record every series that one names. It looks at the
// end: some metrics have their first series after a failure.
func (w *watched) checkNames(t *testing.T) {
	var names []string
	if err := w.get("label/__name__/values", nil, &names); err != nil {
		t.Fatal(err)
	}
	scraped, recorded := map[string]bool{}, map[string]bool{}
	for _, name := range names {
		scraped[name] = true
	}
	var exprs []string
	for _, r := range readRules(t) {
		exprs = append(exprs, r.Expr)
		recorded[r.Record] = true
	}
	for _, d := range readDashboards(t) {
		for _, p := range d.Panels {
			for _, target := range p.Targets {
				exprs = append(exprs, target.Expr)
			}
		}
	}
	recordedName, metricName := regexp.MustCompile(`\b[a-z_]+:\w+:\w+\b`), regexp.MustCompile(`\b(scribe|process|go)_\w+\b|\bup\b`)
	count := 0
	for _, expr := range exprs {
		for _, name := range recordedName.FindAllString(expr, -1) {
			if !recorded[name] {
				t.Errorf("no rule records %s, which is in %s", name, expr)
			}
		}
		for _, name := range metricName.FindAllString(recordedName.ReplaceAllString(expr, ""), -1) {
			count++
			if !scraped[name] {
				t.Errorf("no process has the metric %s, which is in %s", name, expr)
			}
		}
	}
	if count < 100 {
		t.Errorf("found only %d names", count)
	}
}

// alert is an alert that fires. Without an instance it is one of a whole cell.
type alert struct{ name, job, instance string }

type alerts []alert

func (w *watched) queryAlerts(t testing.TB, expr string) (firing alerts) {
	t.Helper()
	got, err := w.query(expr)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range got {
		firing = append(firing, alert{s.labels["alertname"], s.labels["job"], s.labels["instance"]})
	}
	return firing
}

// awaitAlerts returns when all wanted alerts fire: those that are known to have fired by then.
func (w *watched) awaitAlerts(t *testing.T, known alerts, want ...alert) alerts {
	t.Helper()
	await(t, func() string {
		firing := w.queryAlerts(t, `ALERTS{alertstate="firing"}`)
		for _, a := range want {
			if !slices.Contains(firing, a) {
				return fmt.Sprint(a, " does not fire; ", firing)
			}
		}
		return ""
	})
	return append(known, want...)
}

// ofTheMachine are alerts that a machine that is busy or nearly full may set off, since times are so short here. promtool tests them.
var ofTheMachine = []string{"ScribeProcessDegraded", "ScribeWritesSlow", "ScribeMetadataCommitsSlow", "ScribeReadProxyBusy"}

// checkFired: since the beginning no alerts have fired but those that are known.
func (w *watched) checkFired(t *testing.T, when string, known alerts) {
	t.Helper()
	for _, a := range w.queryAlerts(t, `count by (alertname, job, instance) (count_over_time(ALERTS{alertstate="firing"}[1h]))`) {
		if !slices.Contains(known, a) && !slices.Contains(ofTheMachine, a.name) {
			t.Errorf("%s, %v has fired", when, a)
		}
	}
}

// sample is one series of a result, with its present value.
type sample struct {
	labels map[string]string
	value  string
}

// query evaluates an expression now.
func (w *watched) query(expr string) ([]sample, error) {
	var data struct {
		Result []struct {
			Metric map[string]string  `json:"metric"`
			Value  [2]json.RawMessage `json:"value"`
		} `json:"result"`
	}
	if err := w.get("query", url.Values{"query": {expr}}, &data); err != nil {
		return nil, err
	}
	samples := make([]sample, 0, len(data.Result))
	for _, r := range data.Result {
		value, err := strconv.Unquote(string(r.Value[1]))
		if err != nil {
			return nil, err
		}
		samples = append(samples, sample{r.Metric, value})
	}
	return samples, nil
}

// get calls Prometheus's API.
func (w *watched) get(path string, values url.Values, data any) error {
	res, err := http.Get(w.api + path + "?" + values.Encode()) //nolint:noctx // a local call of a test
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	answer := struct {
		Status string `json:"status"`
		Error  string `json:"error"`
		Data   any    `json:"data"`
	}{Data: data}
	if err := json.NewDecoder(res.Body).Decode(&answer); err != nil {
		return err
	}
	if answer.Status != "success" {
		return fmt.Errorf("%s: %s", path, answer.Error)
	}
	return nil
}
