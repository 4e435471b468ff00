package test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"scribe/producer"
	"scribe/test/program"
)

// TestSequencedCategory: what was acknowledged can be read at once, in one order for all, whatever shard they ask for and after a restart; and
// the logs, and what the sequenced one refers to, are whole.
func TestSequencedCategory(t *testing.T) {
	eachKind(t, func(t *testing.T, c *cell) {
		ok(t, nil, "category", "create", "order", "--shards", "3", "--shard-by", "explicit", "--repeatable", "sequenced", "--server", c.read)
		for round := range 3 {
			var wg sync.WaitGroup
			for shard := range 3 {
				wg.Go(func() {
					produce(t, c, "order", fmt.Appendf(nil, "%d-%d-a\n%d-%d-b\n", shard, round, shard, round), "--shard", fmt.Sprint(shard))
				})
			}
			wg.Wait()
		}
		first := tail(t, c, "order")
		if n := bytes.Count(first, []byte("\n")); n != 18 {
			t.Fatalf("%d lines, want 18:\n%s", n, first)
		}
		sameBytes(t, "with a window", tail(t, c, "order", "--window", "1m"), first)
		var one []byte
		for line := range bytes.Lines(first) {
			if line[0] == '1' {
				one = append(one, line...)
			}
		}
		sameBytes(t, "one logical shard", tail(t, c, "order", "--shards", "1"), one)
		c.restart(t, c)
		produce(t, c, "order", []byte("last\n"))
		sameBytes(t, "after a restart", tail(t, c, "order"), append(slices.Clone(first), "last\n"...))
		out := string(ok(t, nil, "inspect", "log", "order", "--verify", "--server", c.read))
		if n := strings.Count(out, `"source":`); n == 0 || n != strings.Count(out, `"min_time":`) {
			t.Errorf("%d pointers are sequenced:\n%s", n, out)
		}
		r := cli(t, nil, "category", "update", "order", "--repeatable", "none", "--server", c.read)
		if r.Code == 0 || !strings.Contains(string(r.Stderr), "sequenced is decided when") {
			t.Errorf("exit code %d:\n%s", r.Code, r.Stderr)
		}
		ok(t, nil, "category", "delete", "order", "--server", c.read)
		ok(t, nil, "category", "create", "order", "--server", c.read)
		produce(t, c, "order", []byte("of another category\n"))
		sameBytes(t, "after it was made again", tail(t, c, "order"), []byte("of another category\n"))
	})
}

// pipeline is the example program, as processes that are killed.
type pipeline struct {
	t       *testing.T
	binary  string
	args    []string
	running *program.Process
}

func (p *pipeline) start() {
	p.running = program.Other(p.t, p.binary, p.args...)
}

// TestExactlyOnce: the pipeline of examples/exactlyonce is killed at random, and so are the sequencers, while messages are written. Each message
// has one result, in the order in which all readers see the messages.
func TestExactlyOnce(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	dir := t.TempDir()
	binary := filepath.Join(dir, "exactlyonce")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", binary, "scribe/examples/exactlyonce").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	env := []string{"SCRIBE_BLOBS=file", "SCRIBE_BLOB_PATH=" + filepath.Join(dir, "blobs"), "SCRIBE_LEASE_TTL=500ms"}
	meta := serve(t, env, "serve", "--roles", "controlplane,metalog,readstream,readproxy,writeproxy,batcher", "--data", filepath.Join(dir, "meta"), "--listen", "127.0.0.1:0")
	env = append(env, "SCRIBE_CONTROL="+meta.URL, "SCRIBE_METALOG="+meta.URL)
	serve(t, env, "serve", "--roles", "batcher", "--data", filepath.Join(dir, "batcher"), "--listen", "127.0.0.1:0")
	sequencer := func(i int) *program.Process {
		return serve(t, env, "serve", "--roles", "sequencer", "--id", fmt.Sprint("sequencer-", i), "--data", filepath.Join(dir, fmt.Sprint("sequencer", i)), "--listen", "127.0.0.1:0")
	}
	sequencers := []*program.Process{sequencer(0), sequencer(1)}
	ok(t, nil, "category", "create", "orders", "--shards", "4", "--shard-by", "explicit", "--delivery", "exactly_once", "--repeatable", "sequenced", "--server", meta.URL)
	ok(t, nil, "category", "create", "results", "--delivery", "exactly_once", "--server", meta.URL)

	// Writers, until the killing is over.
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var writing sync.WaitGroup
	var counts [4]int
	for shard := range counts {
		writing.Go(func() {
			w, err := producer.New(meta.URL)
			if err != nil {
				t.Error(err)
				return
			}
			pace := time.NewTicker(4 * time.Millisecond)
			defer pace.Stop()
			for ; ctx.Err() == nil; <-pace.C {
				msgs := make([]producer.Message, 1+counts[shard]%3)
				for i := range msgs {
					msgs[i] = producer.Message{Payload: fmt.Appendf(nil, "order %d.%06d", shard, counts[shard]+i), Shard: uint32(shard)}
				}
				if err := w.Write(t.Context(), "orders", msgs...); err != nil {
					t.Error(err)
					return
				}
				counts[shard] += len(msgs)
			}
			if err := w.Close(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	p := &pipeline{t: t, binary: binary, args: []string{"--server", meta.URL, "--in", "orders", "--out", "results", "--checkpoint", filepath.Join(dir, "checkpoint"), "--messages", "7", "--span", "20ms"}}
	p.start()
	const kills = 60
	for i := range kills {
		<-time.After(time.Duration(20+random.IntN(180)) * time.Millisecond)
		p.running.Kill()
		if i%5 == 4 { // the one that works or the one that waits
			which := random.IntN(2)
			sequencers[which].Kill()
			p.start()
			<-time.After(time.Duration(random.IntN(300)) * time.Millisecond)
			sequencers[which] = sequencer(which)
			continue
		}
		p.start()
	}
	cancel()
	writing.Wait()
	total := 0
	for _, n := range counts {
		total += n
	}
	var results []string
	for deadline := time.Now().Add(waitLimit); ; <-time.After(100 * time.Millisecond) {
		out := ok(t, nil, "tail", "results", "--from", "earliest", "--until-end", "-o", "raw", "--server", meta.URL)
		if results = strings.Split(strings.TrimSpace(string(out)), "\n"); len(results) >= total {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d results; the pipeline says:\n%s", len(results), total, p.running.Log)
		}
	}
	p.running.Kill()
	orders := strings.Split(strings.TrimSpace(string(ok(t, nil, "tail", "orders", "--from", "earliest", "--until-end", "-o", "raw", "--server", meta.URL))), "\n")
	if len(orders) != total || len(results) != total {
		t.Fatalf("%d orders and %d results, %d were written", len(orders), len(results), total)
	}
	var next [4]int
	for i, order := range orders {
		if want := fmt.Sprintf("%d %s", i, strings.ToUpper(order)); results[i] != want {
			t.Fatalf("result %d is %q, want %q", i, results[i], want)
		}
		var shard, number int
		if _, err := fmt.Sscanf(order, "order %d.%d", &shard, &number); err != nil || number != next[shard] {
			t.Fatalf("order %d is %q, number %d of its shard is next (%v)", i, order, next[shard], err)
		}
		next[shard]++
	}
	t.Logf("%d messages, %d times killed", total, kills)
	ok(t, nil, "inspect", "log", "orders", "--verify", "--server", meta.URL)
	ok(t, nil, "inspect", "dangling", "--blobs", "file", "--blob-path", filepath.Join(dir, "blobs"), "--server", meta.URL)
}
