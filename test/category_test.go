package test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"scribe/producer"
	"scribe/test/netfault"
	"scribe/test/program"
)

// TestCategories: what is created is described, listed and updated as asked, survives a restart, and is gone when deleted.
func TestCategories(t *testing.T) {
	eachKind(t, func(t *testing.T, c *cell) {
		schema := filepath.Join(t.TempDir(), "schema.yaml")
		if err := os.WriteFile(schema, []byte("fields: [{name: a, type: int64}]\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		run := func(args ...string) []byte { return ok(t, nil, append(args, "--server", c.read)...) }
		run("category", "create", "orders", "--retention", "7d", "--shards", "4", "--delivery", "exactly_once", "--owner", "shop", "--quota", "10MB",
			"--window", "30s", "--linger", "1m", "--max-message", "1MiB", "--schema", schema)
		run("category", "create", "other")
		run("category", "update", "orders", "--retention", "1w1d", "--shards", "8")
		c.restart(t, c)
		var got map[string]any
		if err := json.Unmarshal(run("category", "describe", "orders"), &got); err != nil {
			t.Fatal(err)
		}
		for field, want := range map[string]any{
			"name": "orders", "retention": "8d", "shards": 8.0, "delivery": "exactly_once", "owner": "shop", "quota_per_second": "10MB", "window": "30s", "linger": "1m",
			"max_message": "1MiB", "schema": "version 1: json, 1 field",
		} {
			if got[field] != want {
				t.Errorf("%s is %v, want %v", field, got[field], want)
			}
		}
		if list := string(run("category", "list", "--prefix", "o")); !strings.Contains(list, "orders") || !strings.Contains(list, "other") {
			t.Errorf("listed as %s", list)
		}
		if r := cli(t, nil, "category", "update", "orders", "--shards", "2", "--server", c.read); r.Code != 2 {
			t.Errorf("fewer shards: exit code %d, want 2\n%s", r.Code, r.Stderr)
		}
		if r := cli(t, nil, "category", "update", "orders", "--owner", "x", "--revision", "1", "--server", c.read); r.Code != 1 {
			t.Errorf("an old revision: exit code %d, want 1\n%s", r.Code, r.Stderr)
		}
		run("category", "delete", "orders")
		if r := cli(t, nil, "category", "describe", "orders", "--server", c.read); r.Code != 3 {
			t.Errorf("after the deletion: exit code %d, want 3\n%s", r.Code, r.Stderr)
		}
	})
}

// TestRecreatedCategory: a category that was deleted and created again under its name does not show the old messages.
func TestRecreatedCategory(t *testing.T) {
	eachKind(t, func(t *testing.T, c *cell) {
		produce(t, c, "again", []byte("old\n"))
		ok(t, nil, "category", "delete", "again", "--server", c.read)
		ok(t, nil, "category", "create", "again", "--server", c.read)
		produce(t, c, "again", []byte("new\n"))
		sameBytes(t, "the category of the same name", tail(t, c, "again"), []byte("new\n"))
	})
}

// TestRecreatedUnderLoad deletes categories while producers write to them, and creates them again, in a cell where one of two batchers has
// lost the control plane: it knows the categories that were deleted, and not those that came after them. Whatever is sent after the
// second create and acknowledged is in the new category, and nothing that was acknowledged before the delete is.
func TestRecreatedUnderLoad(t *testing.T) {
	blobs := "SCRIBE_BLOB_PATH=" + filepath.Join(t.TempDir(), "blobs")
	control := serve(t, nil, "serve", "--roles", "controlplane,metalog", "--data", filepath.Join(t.TempDir(), "control"), "--listen", "127.0.0.1:0")
	link := netfault.Listen(t, "127.0.0.1:0")
	link.Target(program.Address(t, control.URL))
	run := func(controlURL, roles string) string {
		env := []string{"SCRIBE_CONTROL=" + controlURL, "SCRIBE_METALOG=" + control.URL, "SCRIBE_LISTEN=127.0.0.1:0", "SCRIBE_BLOBS=file", blobs}
		// The one that is cut off stays a member: writes go to it.
		return serve(t, env, "serve", "--roles", roles, "--data", filepath.Join(t.TempDir(), "data"), "--lease-ttl", "5m", "--auto-create=false").URL
	}
	stale := run(program.URL(link.Addr()), "batcher")
	run(control.URL, "batcher")
	front := run(control.URL, "writeproxy,readstream,readproxy")
	c := &cell{write: front, read: front}

	loads := []*load{{category: "least", delivery: "at_least_once"}, {category: "once", delivery: "exactly_once"}}
	for _, l := range loads {
		l.create(t, c)
		l.start(t, c)
		l.await(t, 200)
	}
	link.Set(netfault.Refuse)
	link.Cut()
	for _, l := range loads {
		l.phase.Add(1)
		ok(t, nil, "category", "delete", l.category, "--server", c.read)
		l.create(t, c)
		l.phase.Add(1)
	}
	for _, l := range loads {
		l.await(t, 500)
		l.end()
	}
	for _, l := range loads {
		l.check(t, strings.Fields(string(tail(t, c, l.category))))
	}
	metrics, err := program.Scrape(t.Context(), stale)
	if err != nil {
		t.Fatal(err)
	}
	refused := metrics.Sum("scribe_batcher_append_failures_total")
	if refused == 0 {
		t.Error("the batcher that knew the old categories alone was not written to")
	}
	t.Logf("the engine refused %v appends of the batcher that knew the old categories alone", refused)
}

// load is producers that write to a category, and what they know.
type load struct {
	category, delivery string
	// phase is 0 before the delete, 1 until the second create has returned, 2 then.
	phase atomic.Int32
	stop  context.CancelFunc
	wg    sync.WaitGroup

	mu struct {
		sync.Mutex
		sent map[string]phases
		// acked are the messages that were acknowledged.
		acked map[string]phases
		// after is how many were sent and acknowledged in the present phase.
		after map[int32]int
		grown chan struct{} // closed and replaced when it grows
	}
}

// phases of a message: when it was sent, and when its outcome was known.
type phases struct{ sent, ended int32 }

// shards of each category.
const shards = 8

func (l *load) create(t *testing.T, c *cell) {
	t.Helper()
	ok(t, nil, "category", "create", l.category, "--delivery", l.delivery, "--shards", fmt.Sprint(shards), "--shard-by", "explicit", "--server", c.read)
}

func (l *load) start(t *testing.T, c *cell) {
	t.Helper()
	l.mu.sent, l.mu.acked, l.mu.after, l.mu.grown = map[string]phases{}, map[string]phases{}, map[int32]int{}, make(chan struct{})
	ctx, stop := context.WithCancel(t.Context())
	l.stop = stop
	t.Cleanup(l.end)
	for w := range 4 {
		p, err := producer.New(c.write, producer.WithLinger(0))
		if err != nil {
			t.Fatal(err)
		}
		l.wg.Go(func() {
			defer func() { _ = p.Close(context.WithoutCancel(ctx)) }()
			for i := 0; ctx.Err() == nil; i++ {
				l.write(ctx, p, uint32(i%shards), fmt.Sprintf("%s-%d-%d", l.category, w, i))
			}
		})
	}
}

func (l *load) write(ctx context.Context, p *producer.Producer, shard uint32, id string) {
	sent := l.phase.Load()
	err := p.Write(ctx, l.category, producer.Message{Payload: []byte(id), Shard: shard})
	at := phases{sent, l.phase.Load()}
	l.mu.Lock()
	l.mu.sent[id] = at
	if err == nil {
		l.mu.acked[id] = at
		l.mu.after[sent]++
		close(l.mu.grown)
		l.mu.grown = make(chan struct{})
	}
	l.mu.Unlock()
	if err != nil { // there is no such category for a while
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// await waits until n messages of the present phase are acknowledged.
func (l *load) await(t *testing.T, n int) {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(t.Context(), waitLimit, errors.New("too few messages are acknowledged"))
	defer cancel()
	for {
		l.mu.Lock()
		have, grown := l.mu.after[l.phase.Load()], l.mu.grown
		l.mu.Unlock()
		if have >= n {
			return
		}
		select {
		case <-grown:
		case <-ctx.Done():
			t.Fatalf("%s: %d of %d: %v", l.category, have, n, context.Cause(ctx))
		}
	}
}

func (l *load) end() {
	l.stop()
	l.wg.Wait()
}

// check compares what the category holds with what the producers know.
func (l *load) check(t *testing.T, got []string) {
	t.Helper()
	held := map[string]int{}
	for _, id := range got {
		held[id]++
		switch at, known := l.mu.sent[id]; {
		case !known:
			t.Errorf("%s: %q was never sent", l.category, id)
		case at.ended == 0:
			t.Errorf("%s: %q is of the category that was deleted", l.category, id)
		case held[id] > 1 && l.delivery == "exactly_once":
			t.Errorf("%s: %q is there %d times", l.category, id, held[id])
		}
	}
	counts := [3]int{}
	for id, at := range l.mu.acked {
		counts[at.sent]++
		if at.sent == 2 && held[id] == 0 {
			t.Errorf("%s: %q was acknowledged after the category had been created again, and is lost", l.category, id)
		}
	}
	t.Logf("%s: acknowledged before the delete %d, until the second create %d, after it %d; %d messages are there", l.category, counts[0], counts[1], counts[2], len(got))
}

// TestDeleteEndsReaders: who follows a category that is deleted is told, and what the command says of the data is said.
func TestDeleteEndsReaders(t *testing.T) {
	up := serve(t, nil, "up", "--data", filepath.Join(t.TempDir(), "data"), "--listen", "127.0.0.1:0")
	c := &cell{write: up.URL, read: up.URL}
	produce(t, c, "gone", []byte("old\n"))
	follower, stdout := launch(t, nil, "tail", "gone", "--server", up.URL, "--from", "earliest")
	lines := bufio.NewReader(stdout)
	if line, err := lines.ReadString('\n'); err != nil || line != "old\n" {
		t.Fatalf("%q, %v", line, err)
	}
	if r := cli(t, nil, "category", "delete", "gone", "--server", up.URL); r.Code != 0 || !strings.Contains(string(r.Stderr), "can no longer be read") {
		t.Errorf("exit code %d\n%s", r.Code, r.Stderr)
	}
	select {
	case <-follower.Done:
	case <-time.After(waitLimit):
		t.Fatal("the follower of a deleted category goes on")
	}
	if log := follower.Log.String(); !strings.Contains(log, "deleted") {
		t.Errorf("the follower is told %s", log)
	}
	help := string(ok(t, nil, "category", "delete", "--help"))
	for _, part := range []string{"can't be undone", "retention", "the name can be"} {
		if !strings.Contains(help, part) {
			t.Errorf("the help does not say %q:\n%s", part, help)
		}
	}
}

// TestRecreateWithoutMetalog: a control plane that can't have the old logs ended says so, and goes on with it once it can.
func TestRecreateWithoutMetalog(t *testing.T) {
	control := serve(t, nil, "serve", "--roles", "controlplane", "--data", filepath.Join(t.TempDir(), "control"), "--listen", "127.0.0.1:0")
	ok(t, nil, "category", "create", "again", "--server", control.URL)
	ok(t, nil, "category", "delete", "again", "--server", control.URL)
	if out := string(ok(t, nil, "status", "--server", control.URL)); !strings.Contains(out, "\nretiring    1 (") {
		t.Errorf("what waits for the metalog is not in the status:\n%s", out)
	}
	if out := string(ok(t, nil, "status", "--json", "--server", control.URL)); !strings.Contains(out, `"retirements_pending": 1`) {
		t.Errorf("nor in its JSON:\n%s", out)
	}
	r := cli(t, nil, "category", "create", "again", "--server", control.URL)
	if r.Code != 5 || !strings.Contains(string(r.Stderr), "have not ended yet") || strings.Contains(string(r.Stderr), "is not available") {
		t.Errorf("exit code %d\n%s", r.Code, r.Stderr)
	}
	pending := func() float64 {
		m, err := program.Scrape(t.Context(), control.URL)
		if err != nil {
			t.Fatal(err)
		}
		return m.Sum("scribe_controlplane_retirements_pending")
	}
	if n := pending(); n != 1 {
		t.Errorf("%v retirements are pending", n)
	}
	serve(t, []string{"SCRIBE_CONTROL=" + control.URL}, "serve", "--roles", "metalog", "--data", filepath.Join(t.TempDir(), "metalog"), "--listen", "127.0.0.1:0")
	ok(t, nil, "category", "create", "again", "--server", control.URL)
	if n := pending(); n != 0 {
		t.Errorf("%v retirements are pending after it was created", n)
	}
}
