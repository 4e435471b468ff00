package resume

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"scribe/cmd/scribe/app"
	"scribe/consumer"
	"scribe/internal/transport/rpc"
	"scribe/producer"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/test/program"
)

// patience bounds every wait: far more than anything takes, so that only a hang reaches it.
const patience = 2 * time.Minute

// shards are the logical shards of the categories.
const shards = 4

// cell runs every role in this process; its streams are sent away when they are so old.
func cell(t *testing.T, age time.Duration) string {
	cfg := app.DefaultConfig()
	cfg.Data, cfg.Listen = filepath.Join(t.TempDir(), "data"), "127.0.0.1:0"
	cfg.ReadStream.MaxStreamAge = age
	a, err := app.Start(t.Context(), cfg, app.Options{Logger: slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelError}))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
		defer cancel()
		if err := a.Stop(ctx); err != nil {
			t.Errorf("stop: %v", err)
		}
	})
	return a.URL()
}

func create(t *testing.T, url, name string, repeatable scribev1.Repeatability) {
	t.Helper()
	_, err := rpc.NewControlClient(rpc.Default(), url).CreateCategory(t.Context(), &scribev1.CreateCategoryRequest{
		Category: &scribev1.Category{Name: name, Shards: shards, ShardBy: scribev1.ShardBy_SHARD_BY_EXPLICIT, Repeatable: repeatable},
	})
	if err != nil {
		t.Fatal(err)
	}
}

// writers write to a category until they are stopped: every message says who wrote it, to which shard, and which of its own it is. Some
// come as atomic batches.
type writers struct {
	stop  context.CancelFunc
	wg    sync.WaitGroup
	count [writing]atomic.Int64
}

const (
	writing = 3 // writers
	whole   = 5 // messages of an atomic batch
)

func write(t *testing.T, url, category string) *writers {
	t.Helper()
	p, err := producer.New(url, producer.WithAck(producer.AckCommitted), producer.WithLinger(0))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	w := &writers{stop: cancel}
	for id := range writing {
		w.wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(id), 1)) //nolint:gosec // any numbers will do
			for ctx.Err() == nil {
				shard := uint32(rng.IntN(shards))
				n, atomic := 1+rng.IntN(20), rng.IntN(4) == 0
				if atomic {
					n = whole
				}
				msgs := make([]producer.Message, n)
				for i := range msgs {
					at := "-"
					if atomic {
						at = strconv.Itoa(i)
					}
					msgs[i] = producer.Message{Shard: shard, Payload: fmt.Appendf(nil, "%d %d %d %s %s", id, shard, w.count[id].Add(1)-1, at, strings.Repeat("x", rng.IntN(300)))}
				}
				// Not the context that stops the writers: what was begun is written.
				var err error
				if atomic {
					err = p.WriteAtomic(t.Context(), category, shard, msgs...)
				} else {
					err = p.Write(t.Context(), category, msgs...)
				}
				if err != nil {
					t.Errorf("write: %v", err)
					return
				}
				select {
				case <-ctx.Done():
				case <-time.After(time.Duration(rng.IntN(3000)) * time.Microsecond):
				}
			}
		})
	}
	t.Cleanup(func() {
		w.end()
		if err := p.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	return w
}

func (w *writers) end() {
	w.stop()
	w.wg.Wait()
}

// message is what a payload says.
type message struct{ writer, shard, number, at int }

func parse(t *testing.T, text string) (m message) {
	t.Helper()
	f := strings.SplitN(text, " ", 5)
	var errs [4]error
	m.writer, errs[0] = strconv.Atoi(f[0])
	m.shard, errs[1] = strconv.Atoi(f[1])
	m.number, errs[2] = strconv.Atoi(f[2])
	if m.at = -1; f[3] != "-" {
		m.at, errs[3] = strconv.Atoi(f[3])
	}
	for _, err := range errs {
		if err != nil {
			t.Fatalf("%q: %v", text, err)
		}
	}
	return m
}

// check compares what was read over all lives with what was written: each message once, those of a writer in a shard in order, and atomic
// batches in one piece.
func check(t *testing.T, w *writers, got []string) {
	t.Helper()
	var (
		seen [writing]map[int]bool
		last = map[[2]int]int{}
		open *message // an atomic batch that is not complete
	)
	for i := range seen {
		seen[i] = map[int]bool{}
	}
	for i, text := range got {
		m := parse(t, text)
		if seen[m.writer][m.number] {
			t.Fatalf("message %d of %d was delivered before: %.40q", i, len(got), text)
		}
		seen[m.writer][m.number] = true
		key := [2]int{m.writer, m.shard}
		if before, ok := last[key]; ok && m.number < before {
			t.Fatalf("message %d of %d: %d of writer %d came after %d of its shard %d", i, len(got), m.number, m.writer, before, m.shard)
		}
		last[key] = m.number
		if open != nil && (m.writer != open.writer || m.number != open.number+1 || m.at != open.at+1) {
			t.Fatalf("message %d of %d: %+v in the middle of an atomic batch, after %+v", i, len(got), m, *open)
		}
		if open = nil; m.at >= 0 && m.at < whole-1 {
			open = &m
		}
	}
	for id := range seen {
		if n := int(w.count[id].Load()); len(seen[id]) != n {
			t.Errorf("%d of %d messages of writer %d", len(seen[id]), n, id)
		}
	}
}

// lives runs a child again and again on one journal, and kills each at random. It returns what they have read, when all has been.
func lives(t *testing.T, url, category string, kills int, w *writers) []string {
	t.Helper()
	if testing.Short() {
		kills = min(kills, 40)
	}
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("SCRIBE_TEST_SEED"); s != "" {
		var err error
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("SCRIBE_TEST_SEED=%d", seed)
	rng := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // reproducible on purpose
	file := filepath.Join(t.TempDir(), "journal")
	env := append(os.Environ(), childServer+"="+url, childCategory+"="+category, childJournal+"="+file)
	progress := 0
	for range kills {
		if live(t, env, rng) {
			progress++
		}
	}
	if progress < kills/3 {
		t.Errorf("only %d of %d lives got anywhere", progress, kills)
	}
	w.end()
	var stderr bytes.Buffer
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := program.Command(ctx, os.Args[0])
	cmd.Env, cmd.Stderr = append(env, childUntilEnd+"=1"), &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("the last life: %v\n%s", err, stderr.Bytes())
	}
	j, err := openJournal(file)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = j.file.Close() }()
	t.Logf("%d of %d lives got somewhere, %d messages", progress, kills, len(j.messages))
	return j.messages
}

// live runs one child, kills it at some moment, and reports whether it had committed anything. Some die while they start, some between or
// within the transactions that follow.
func live(t *testing.T, env []string, rng *rand.Rand) bool {
	t.Helper()
	var stderr bytes.Buffer
	cmd := program.Command(t.Context(), os.Args[0])
	cmd.Env, cmd.Stderr = env, &stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stuck := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
	defer stuck.Stop()
	commits, early := rng.IntN(4), rng.IntN(4) == 0
	buf := make([]byte, 1)
	n := 0
	if !early {
		for n <= commits {
			if _, err := stdout.Read(buf); err != nil {
				t.Errorf("a life ended by itself: %v", err)
				break
			}
			n++
		}
		<-time.After(time.Duration(rng.IntN(2000)) * time.Microsecond)
	} else {
		<-time.After(time.Duration(rng.IntN(60)) * time.Millisecond)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait() // it was killed
	if stderr.Len() > 0 {
		t.Errorf("a life said: %s", stderr.Bytes())
	}
	return n > 0
}

// TestKilledConsumer: a process that consumes is killed two hundred times (40 with -short) while writers run. Over all its lives it has read each message
// exactly once.
func TestKilledConsumer(t *testing.T) {
	url := cell(t, 0)
	create(t, url, "events", scribev1.Repeatability_REPEATABILITY_NONE)
	w := write(t, url, "events")
	check(t, w, lives(t, url, "events", 200, w))
}

// TestKilledConsumerOfOneOrder: in a repeatable category it has read them in the order in which somebody reads them who never dies.
func TestKilledConsumerOfOneOrder(t *testing.T) {
	url := cell(t, 300*time.Millisecond)
	create(t, url, "changes", scribev1.Repeatability_REPEATABILITY_BOUND)
	w := write(t, url, "changes")
	got := lives(t, url, "changes", 40, w)
	check(t, w, got)
	c, err := consumer.New(url, "changes", consumer.WithStart(consumer.Earliest()), consumer.WithUntilEnd())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	var all []string
	for rec, err := range c.Records(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, string(rec.Payload))
	}
	if !slices.Equal(got, all) {
		t.Errorf("%d messages over many lives, %d in one, in another order", len(got), len(all))
	}
}

// TestEvictedStreams: streams are sent away ten times a second while writers run, and the consumer is replaced at times by one that begins
// with its checkpoint. Each message comes once.
func TestEvictedStreams(t *testing.T) {
	url := cell(t, 100*time.Millisecond)
	create(t, url, "events", scribev1.Repeatability_REPEATABILITY_NONE)
	w := write(t, url, "events")
	var (
		got        []string
		checkpoint string
		reopened   uint64
		rng        = rand.New(rand.NewPCG(1, 2)) //nolint:gosec // any numbers will do
		begun      = time.Now()
	)
	read := func(ctx context.Context, most int, opts ...consumer.Option) {
		start := consumer.Earliest()
		if checkpoint != "" {
			var err error
			if start, err = consumer.Checkpoint(checkpoint); err != nil {
				t.Fatal(err)
			}
		}
		c, err := consumer.New(url, "events", append(opts, consumer.WithStart(start), consumer.WithHeartbeat(50*time.Millisecond), consumer.WithBackoff(time.Millisecond, 10*time.Millisecond))...)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
		n := 0
		for rec, err := range c.Records(ctx) {
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, string(rec.Payload))
			checkpoint = c.Checkpoint()
			if n++; n == most {
				break
			}
		}
		reopened += c.Stats().Reconnects
	}
	const evictions = 10
	for (time.Since(begun) < 4*time.Second || reopened < evictions) && time.Since(begun) < patience && !t.Failed() {
		read(t.Context(), 1+rng.IntN(3000))
	}
	w.end()
	read(t.Context(), 0, consumer.WithUntilEnd())
	check(t, w, got)
	t.Logf("%d messages, streams opened again %d times", len(got), reopened)
	if reopened < evictions {
		t.Errorf("streams were opened again %d times only", reopened)
	}
}
