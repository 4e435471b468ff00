package app

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/blob"
	"scribe/storage/blob/memory"
	"scribe/storage/metalog/journal"
)

// TestRolesThatCantWork: a role that can't work makes the process unready, not at once, and with the reason; lesser trouble is told beside "ok".
func TestRolesThatCantWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &App{opts: Options{Host: Host{}.withDefaults()}, started: time.Now(), guard: &accessGuard{}}
		var batchers, disk error
		a.watchCondition("batchers", scribev1.Severity_SEVERITY_FAILING, func() error { return batchers })
		a.watchCondition("disk", scribev1.Severity_SEVERITY_DEGRADED, func() error { return disk })
		probe := func(code int, want string) {
			t.Helper()
			w := httptest.NewRecorder()
			a.serveReadyz(w, httptest.NewRequest(http.MethodGet, "/readyz", nil))
			if w.Code != code || w.Body.String() != want {
				t.Errorf("%d %q, want %d %q", w.Code, w.Body, code, want)
			}
		}
		probe(503, "not ready: the process is starting or stopping\n")
		a.ready.Store(true)
		probe(200, "ok\n")
		disk = errors.New("1GiB is free")
		probe(200, "ok\ndegraded: disk: 1GiB is free\n")
		batchers = errors.New("none answers")
		probe(200, "ok\nfailing: batchers: none answers\ndegraded: disk: 1GiB is free\n")
		<-time.After(unreadyAfter)
		probe(503, "failing: batchers: none answers\ndegraded: disk: 1GiB is free\n")
		a.guard.enforced = true // strangers learn which part is meant, not how much there is of what
		probe(503, "failing: batchers\ndegraded: disk\n")
		a.guard.enforced = false
		batchers, disk = nil, nil
		probe(200, "ok\n")
		batchers = errors.New("none answers") // it begins again
		probe(200, "ok\nfailing: batchers: none answers\n")
	})
}

// TestProblemMetrics: metrics count what /readyz tells, by severity, and name the version.
func TestProblemMetrics(t *testing.T) {
	a := &App{opts: Options{Host: Host{}.withDefaults(), Version: "1.2.3"}, started: time.Now(), registry: prometheus.NewRegistry()}
	if err := a.countProblems(); err != nil {
		t.Fatal(err)
	}
	disk := errors.New("it is full")
	a.watchCondition("disk", scribev1.Severity_SEVERITY_FAILING, func() error { return disk })
	a.watchCondition("lease", scribev1.Severity_SEVERITY_DEGRADED, func() error { return errors.New("late") })
	compare := func(failing, degraded string) {
		t.Helper()
		want := `# HELP scribe_process_build 1, with the version of the program.
# TYPE scribe_process_build gauge
scribe_process_build{version="1.2.3"} 1
# HELP scribe_process_problems What is wrong with the process now, as /readyz says, by severity: failing, where a role can't do its work, or degraded.
# TYPE scribe_process_problems gauge
scribe_process_problems{severity="degraded"} ` + degraded + `
scribe_process_problems{severity="failing"} ` + failing + "\n"
		if err := testutil.GatherAndCompare(a.registry, strings.NewReader(want)); err != nil {
			t.Error(err)
		}
	}
	compare("1", "0") // it is starting
	a.ready.Store(true)
	compare("1", "1")
	disk = nil
	compare("0", "1")
}

// failingStore fails as it is told.
type failingStore struct {
	blob.Store
	err error
}

func (s *failingStore) Put(ctx context.Context, key string, parts ...[]byte) error {
	if s.err != nil {
		return s.err
	}
	return s.Store.Put(ctx, key, parts...)
}

// TestObservedBlobs: a store that fails is known to fail until it works again, and the log says when it begins and when it is over. An answer about
// a blob, and a call that was given up, say nothing about the store.
func TestObservedBlobs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		store := &failingStore{Store: memory.New()}
		o := observeBlobs(store, slog.New(slog.NewTextHandler(&log, nil)))
		put := func(key string, err error) {
			store.err = err
			_ = o.Put(t.Context(), key, []byte("x")) // what it returns is not the point
		}
		put("a", nil)
		put("a", nil) // the key was used before
		put("b", context.Canceled)
		if err := o.ReadAt(t.Context(), "nothing", make([]byte, 1), 0); !errors.Is(err, blob.ErrNotFound) {
			t.Error(err)
		}
		if err := errors.Join(o.puts.failure(), o.reads.failure()); err != nil || log.Len() > 0 {
			t.Errorf("a store that works: %v, %s", err, &log)
		}
		put("c", blob.ErrUnavailable)
		<-time.After(5 * time.Second)
		put("c", blob.ErrUnavailable)
		if err := o.puts.failure(); !errors.Is(err, blob.ErrUnavailable) || !strings.Contains(err.Error(), "puts have failed for 5s") {
			t.Errorf("a store that fails: %v", err)
		}
		if err := o.reads.failure(); err != nil {
			t.Errorf("reads: %v", err)
		}
		put("d", nil)
		if err := o.puts.failure(); err != nil {
			t.Errorf("a store that works again: %v", err)
		}
		if text := log.String(); strings.Count(text, "the blob store fails") != 1 || !strings.Contains(text, `msg="the blob store works again" calls=puts failures=2`) {
			t.Errorf("logged:\n%s", text)
		}
		put("e", blob.ErrUnavailable)
		<-time.After(2 * forgetFailure)
		if err := o.puts.failure(); err != nil {
			t.Errorf("long after the last call: %v", err)
		}
	})
}

// TestProcessDescribesItself: a process says how it is and what it has moved of each category, over the network.
func TestProcessDescribesItself(t *testing.T) {
	a, err := start(t, Direct, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer stopNow(t, a)
	transport := rpc.NewTransport(nil)
	defer transport.Close()
	_, err = rpc.NewControlClient(transport, a.URL()).CreateCategory(t.Context(), &scribev1.CreateCategoryRequest{Category: &scribev1.Category{Name: "orders", Owner: "shop"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"one", "two", "three"} {
		_, err := rpc.NewWriteClient(transport, a.URL()).Publish(t.Context(), &scribev1.PublishRequest{
			Category: "orders", Ack: scribev1.AckLevel_ACK_LEVEL_COMMITTED, Messages: []*scribev1.PublishMessage{{Content: &scribev1.PublishMessage_Text{Text: text}}},
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	process := rpc.NewProcessClient(transport, a.URL())
	moved, err := process.GetTraffic(t.Context(), &scribev1.GetTrafficRequest{})
	if err != nil || len(moved.GetCategories()) != 1 {
		t.Fatalf("%v, %v", moved, err)
	}
	if c := moved.GetCategories()[0]; c.GetCategory() != "orders" || c.GetOwner() != "shop" || c.GetWrittenMessages() != 3 || c.GetWrittenBytes() == 0 || c.GetFailedMessages() != 0 {
		t.Errorf("moved %v", c)
	}
	if other, err := process.GetTraffic(t.Context(), &scribev1.GetTrafficRequest{Prefix: "web."}); err != nil || len(other.GetCategories()) > 0 {
		t.Errorf("of web.: %v, %v", other, err)
	}
	health, err := process.GetHealth(t.Context(), &scribev1.GetHealthRequest{})
	if err != nil || health.GetId() != a.id || len(health.GetRoles()) == 0 || health.GetNow() == 0 {
		t.Errorf("%v, %v", health, err)
	}
	for _, p := range health.GetProblems() {
		if p.GetSubject() != "disk" { // of the machine of the test
			t.Errorf("problem: %v", p)
		}
	}
	res, err := http.Get(a.URL() + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	if err != nil || !strings.Contains(string(text), `scribe_category_written_messages_total{category="orders",owner="shop"} `) {
		t.Errorf("no series of the category, %v", err)
	}
	http.DefaultClient.CloseIdleConnections()
}

// TestUpstreamThatNeverAnswered: an agent with a wrong upstream says so at its start, and says when it answers.
func TestUpstreamThatNeverAnswered(t *testing.T) {
	cell, err := start(t, Direct, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer stopNow(t, cell)
	for _, c := range []struct {
		upstream, want string
	}{{"http://127.0.0.1:1", "the upstream has not answered yet: messages are kept in "}, {cell.URL(), ""}} {
		said := make(chan string, 100)
		log := slog.New(slog.NewTextHandler(lineWriter(said), nil))
		cfg := DefaultConfig()
		cfg.Roles, cfg.Listen, cfg.Upstream, cfg.Scribed.Spool.Dir = []Role{Scribed}, "127.0.0.1:0", c.upstream, t.TempDir()
		agent, err := Start(t.Context(), cfg, Options{Logger: log})
		if err != nil {
			t.Fatal(err)
		}
		for c.want != "" {
			if line := <-said; strings.Contains(line, c.want) && strings.Contains(line, c.upstream) {
				break
			}
		}
		stopNow(t, agent)
		close(said)
		for line := range said {
			if c.want == "" && strings.Contains(line, "has not answered") {
				t.Errorf("an upstream that answers: %s", line)
			}
		}
	}
}

// lineWriter sends what is written.
type lineWriter chan<- string

func (w lineWriter) Write(b []byte) (int, error) {
	w <- string(b)
	return len(b), nil
}

// neglectedJournal is a journal whose upkeep nobody does.
type neglectedJournal struct {
	journal.Journal
	neglected error
}

func (j *neglectedJournal) Neglected() error { return j.neglected }

// TestNeglectedEtcd: a process whose etcd grows is degraded; journals that need no upkeep are not asked.
func TestNeglectedEtcd(t *testing.T) {
	a := &App{opts: Options{Host: Host{}.withDefaults()}, started: time.Now()}
	a.ready.Store(true)
	j := &neglectedJournal{}
	a.watchNeglect(j)
	a.watchNeglect(journal.Journal(nil))
	if problems := a.listProblems(); len(problems) > 0 {
		t.Errorf("%v", problems)
	}
	j.neglected = errors.New("nobody compacts")
	problems := a.listProblems()
	if len(problems) != 1 || problems[0].GetSubject() != "etcd" || problems[0].GetText() != "nobody compacts" || problems[0].GetSeverity() != scribev1.Severity_SEVERITY_DEGRADED {
		t.Errorf("%v", problems)
	}
}
