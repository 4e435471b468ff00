package test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"scribe/consumer"
	"scribe/producer"
	histories "scribe/test/history"
	"scribe/test/program"
)

// restoredLoad are writers that never give up, before, while and after the metadata of their cell is lost, and what they know.
type restoredLoad struct {
	t       *testing.T
	h       *histories.History
	servers string
	acked   []*atomic.Int64
	stop    chan struct{}
	running sync.WaitGroup
}

// startLoad creates two categories, and lets several writers write to them.
func startLoad(t *testing.T, servers string) *restoredLoad {
	t.Helper()
	l := &restoredLoad{t: t, h: histories.New(), servers: servers, stop: make(chan struct{})}
	l.h.Category("least", histories.Guarantees{})
	l.h.Category("once", histories.Guarantees{ExactlyOnce: true, NoGivingUp: true})
	ok(t, nil, "category", "create", "least", "--shards", "2", "--shard-by", "explicit", "--server", servers)
	ok(t, nil, "category", "create", "once", "--shards", "2", "--shard-by", "explicit", "--delivery", "exactly_once", "--owner", "team", "--server", servers)
	for i, category := range []string{"least", "least", "once", "once"} {
		acked := new(atomic.Int64)
		l.acked = append(l.acked, acked)
		l.running.Go(func() { l.write(fmt.Sprintf("writer-%d", i), category, uint32(i%2), acked) })
	}
	t.Cleanup(l.end)
	return l
}

// write writes batches, one after another.
func (l *restoredLoad) write(name, category string, shard uint32, acked *atomic.Int64) {
	p, err := producer.New(l.servers, producer.WithAck(producer.AckCommitted), producer.WithDeliveryTimeout(0), producer.WithRequestTimeout(4*time.Second),
		producer.WithBackoff(10*time.Millisecond, 500*time.Millisecond))
	if err != nil {
		l.t.Error(err)
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(l.t.Context()), 3*waitLimit)
	defer cancel()
	defer func() {
		if err := p.Close(ctx); err != nil {
			l.t.Errorf("%s: %v", name, err)
		}
	}()
	rng := rand.New(rand.NewPCG(uint64(len(name)), uint64(shard)))
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for next := 0; ; {
		select {
		case <-l.stop:
			return
		case <-tick.C:
		}
		msgs := make([]histories.Message, 1+rng.IntN(5))
		sent := make([]producer.Message, len(msgs))
		for i := range msgs {
			id := histories.ID{Writer: name, Index: next}
			msgs[i] = histories.Message{ID: id, Payload: histories.Payload(id, 20+rng.IntN(200), rng)}
			sent[i] = producer.Message{Payload: msgs[i].Payload, Shard: shard}
			next++
		}
		a := l.h.Begin(category, shard, msgs...)
		if err := p.Write(ctx, category, sent...); err != nil {
			l.t.Errorf("%s: %v", name, err)
			return
		}
		for i := range msgs {
			a.Acked(i, histories.Committed)
		}
		acked.Add(int64(len(msgs)))
	}
}

// advance waits until each writer has more messages acknowledged.
func (l *restoredLoad) advance() {
	l.t.Helper()
	deadline := time.After(waitLimit)
	for i, a := range l.acked {
		for want := a.Load() + 50; a.Load() < want; {
			select {
			case <-time.After(5 * time.Millisecond):
			case <-deadline:
				l.t.Fatalf("writer %d has no acknowledgements any more: %d", i, a.Load())
			}
		}
	}
}

func (l *restoredLoad) end() {
	select {
	case <-l.stop:
	default:
		close(l.stop)
	}
	l.running.Wait()
}

// check reads everything, and compares it with what writers know and with what was read before: positions, too.
func (l *restoredLoad) check(what string) {
	l.t.Helper()
	for _, category := range []string{"least", "once"} {
		r := l.h.Read(category)
		if err := l.read(r, category); err != nil {
			l.t.Fatalf("%s: %s: %v", what, category, err)
		}
		report := l.h.Check(r, histories.Committed)
		if err := report.Err(); err != nil {
			l.t.Errorf("%s: %v", what, err)
		}
		l.t.Logf("%s: %s: %d written, %d acknowledged, %d read, %d of them copies", what, category, report.Written, report.Acked, report.Seen, report.Copies)
	}
}

func (l *restoredLoad) read(r *histories.Reading, category string) error {
	ctx, cancel := context.WithTimeout(l.t.Context(), waitLimit)
	defer cancel()
	c, err := consumer.New(l.servers, category, consumer.WithStart(consumer.Earliest()), consumer.WithUntilEnd(), consumer.WithRequestTimeout(5*time.Second))
	if err != nil {
		return err
	}
	defer c.Close()
	for m, err := range c.Records(ctx) {
		if err != nil {
			return err
		}
		r.Record(m.Payload, m.LogicalShard, uint64(m.Shard), m.LSN, m.Index, m.Persisted.UnixMicro())
	}
	return nil
}

// createBackup has the process at a server make a backup.
func createBackup(t *testing.T, server string) (name string) {
	t.Helper()
	var made struct {
		Name        string
		BytesStored uint64 `json:"bytes_stored"`
	}
	if err := json.Unmarshal(ok(t, nil, "backup", "create", "--server", server, "-o", "json"), &made); err != nil || made.Name == "" || made.BytesStored == 0 {
		t.Fatalf("%+v, %v", made, err)
	}
	return made.Name
}

// restoreSummary is a part of what scribe restore prints.
type restoreSummary struct {
	Backup  string `json:"backup"`
	Records int    `json:"records"`
	Copied  int    `json:"records_of_backup"`
	Cut     int    `json:"records_cut"`
	Lost    int    `json:"records_lost"`
}

func restoreRun(t *testing.T, code int, args ...string) (restoreSummary, string) {
	t.Helper()
	r := cli(t, nil, append([]string{"restore"}, args...)...)
	var s restoreSummary
	if r.Code == 0 || r.Code == 6 {
		if err := json.Unmarshal(r.Stdout, &s); err != nil {
			t.Fatalf("%v\n%s\n%s", err, r.Stdout, r.Stderr)
		}
	}
	if r.Code != code {
		t.Fatalf("exit code %d, want %d\n%s\n%s", r.Code, code, r.Stdout, r.Stderr)
	}
	return s, string(r.Stderr)
}

// TestBackupUnderLoad: backups are made while writers write; the process is killed and its metadata lost. With a backup and the blobs everything that was acknowledged, before and after
// the backup, is where it was, and the same writers, a reader with a checkpoint and a group go on.
func TestBackupUnderLoad(t *testing.T) {
	program.OneProcess(t, "it loses the folders of one process: TestBackupOfNodes loses nodes")
	t.Parallel()
	dir := t.TempDir()
	data, blobs, elsewhere := filepath.Join(dir, "data"), filepath.Join(dir, "blobs"), filepath.Join(dir, "backups")
	address := program.NodeAddress(t)
	start := func(data string) *program.Process {
		return serve(t, nil, "up", "--data", data, "--blob-path", blobs, "--backup-to", elsewhere, "--listen", address)
	}
	up := start(data)
	l := startLoad(t, up.URL)
	l.advance()
	older := createBackup(t, up.URL)
	l.advance()
	newest := createBackup(t, up.URL)
	until := momentAfter(t, newest)
	<-time.After(time.Until(until) + 100*time.Millisecond) // what comes next is later, also for a process that is a little behind
	c := &cell{write: up.URL, read: up.URL}
	produce(t, c, "later", countedLines(0, 100))
	checkpoint := filepath.Join(dir, "checkpoint")
	read := func(args ...string) []byte {
		return ok(t, nil, append([]string{"tail", "later", "--server", up.URL, "--from", "earliest", "-o", "raw"}, args...)...)
	}
	sameBytes(t, "before the loss", read("--checkpoint", checkpoint, "-n", "40"), countedLines(0, 40))
	l.advance()
	l.check("before the loss")
	up.Kill()
	l.h.Origin(uint64(time.Now().UnixMicro())) //nolint:gosec // after 1970
	for _, lost := range []string{"metalog", "control"} {
		if err := os.RemoveAll(filepath.Join(data, lost)); err != nil {
			t.Fatal(err)
		}
	}

	store := []string{"--data", data, "--blob-path", blobs, "--backup-to", elsewhere}
	if listed := string(ok(t, nil, append([]string{"backup", "list"}, store...)...)); !strings.Contains(listed, older) || strings.Index(listed, newest) < strings.Index(listed, older) {
		t.Errorf("listed are\n%s", listed)
	}
	ok(t, nil, append([]string{"backup", "verify"}, store...)...)
	to := filepath.Join(dir, "restored")
	if s, _ := restoreRun(t, 0, append(store, "--dry-run")...); s.Backup != newest || s.Lost != 0 {
		t.Errorf("a dry run: %+v", s)
	}
	if _, err := os.Stat(to); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a dry run leaves %v", err)
	}
	s, told := restoreRun(t, 0, append(store, "--to", to, "--from", older)...)
	if s.Backup != older || s.Copied == 0 || s.Copied >= s.Records || s.Lost != 0 || !strings.Contains(told, "valid again") {
		t.Errorf("%+v\n%s", s, told)
	}
	restoreRun(t, 1, append(store, "--to", to)...)
	restoreRun(t, 3, append(store, "--to", filepath.Join(dir, "x"), "--from", "none")...)
	restoreRun(t, 3, append(store, "--to", filepath.Join(dir, "x"), "--until", "2020-01-01")...)
	restoreRun(t, 2, append(store, "--to", filepath.Join(dir, "x"), "--until", "soon")...)
	restoreRun(t, 2, store...)

	up = start(to)
	l.advance()
	l.end()
	l.check("restored")
	var category struct{ Owner string }
	if err := json.Unmarshal(ok(t, nil, "category", "describe", "once", "--server", up.URL), &category); err != nil || category.Owner != "team" {
		t.Errorf("the category is %+v, %v", category, err)
	}
	c.write, c.read = up.URL, up.URL
	produce(t, c, "later", countedLines(100, 150))
	sameBytes(t, "a category of after the backup, from a checkpoint of before", read("--checkpoint", checkpoint, "--until-end"), countedLines(40, 150))
	ok(t, nil, "inspect", "dangling", "--data", to, "--blob-path", blobs, "--server", up.URL)
	up.Stop()
	ok(t, nil, append([]string{"backup", "delete", "--yes", "--keep", "1"}, store...)...)
	if listed := string(ok(t, nil, append([]string{"backup", "list"}, store...)...)); strings.Contains(listed, older) || !strings.Contains(listed, newest) {
		t.Errorf("left are\n%s", listed)
	}

	// A moment before the loss: what is later is a gap, which a reader of before goes on after.
	moment := filepath.Join(dir, "moment")
	if s, _ := restoreRun(t, 0, append(store, "--to", moment, "--until", until.Format(time.RFC3339))...); s.Cut == 0 || s.Backup != newest {
		t.Errorf("%+v", s)
	}
	up = start(moment)
	r := cli(t, nil, "tail", "later", "--server", up.URL, "--until-end", "--from", "earliest", "-o", "raw")
	if len(r.Stdout) > 0 || !strings.Contains(string(r.Stderr), "missing") {
		t.Errorf("what is later than the moment: %s\n%s", r.Stdout, r.Stderr)
	}
	produce(t, &cell{write: up.URL}, "later", []byte("new\n"))
	sameBytes(t, "from a checkpoint of after the moment", read("--checkpoint", checkpoint, "--until-end"), []byte("new\n"))
	up.Stop()
}

// momentAfter returns the second after a backup was made.
func momentAfter(t *testing.T, name string) time.Time {
	t.Helper()
	at, err := time.Parse("20060102-150405", name[:15])
	if err != nil {
		t.Fatal(err)
	}
	return at.Add(time.Second)
}

// TestBackupOfNodes: a node makes a backup while writers write, all nodes are killed, and their disks lost. New nodes begin with what is restored.
func TestBackupOfNodes(t *testing.T) {
	t.Parallel()
	c := &movedCell{nodeCell: startNodes(t)}
	l := startLoad(t, strings.Join([]string{c.url(0), c.url(1), c.url(2)}, ","))
	l.advance()
	follower := c.others(c.leader(t, 0))[0]
	name := createBackup(t, c.url(follower))
	l.advance()
	l.check("before the loss")
	for i, n := range c.nodes {
		n.Kill()
		if err := os.RemoveAll(c.data(i)); err != nil {
			t.Fatal(err)
		}
	}
	l.h.Origin(uint64(time.Now().UnixMicro())) //nolint:gosec // after 1970
	if s, _ := restoreRun(t, 0, "--blob-path", filepath.Join(c.dir, "blobs"), "--to", c.data(0)); s.Backup != name || s.Copied == 0 || s.Copied >= s.Records || s.Lost != 0 {
		t.Errorf("%+v", s)
	}
	c.adopt(t)
	l.advance()
	l.end()
	l.check("restored")
}
