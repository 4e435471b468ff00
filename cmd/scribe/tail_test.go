package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"scribe/consumer"
	"scribe/internal/format/checkpoint"
	"scribe/internal/format/record"
)

// someShard is a shard of category 7.
func someShard(logical uint16) record.ShardID { return record.MakeShardID(7, logical, 1) }

// full takes so many bytes.
type full struct {
	room int
	got  bytes.Buffer
}

var errFull = errors.New("full")

func (f *full) Write(b []byte) (int, error) {
	n := min(len(b), f.room)
	f.room -= n
	f.got.Write(b[:n])
	if n < len(b) {
		return n, errFull
	}
	return n, nil
}

// TestPrinterStopsAnywhere: wherever standard output takes no more, the place is behind the last message that it took whole.
func TestPrinterStopsAnywhere(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		out := &full{room: rapid.IntRange(0, 300).Draw(t, "room")}
		p := &recordPrinter{format: appendRaw, out: newOutput(out), position: new(outputPosition), marking: true}
		base := checkpoint.Checkpoint{Category: "c", CategoryID: 7, Positions: []checkpoint.Position{{Shard: someShard(1), LSN: 1}, {Shard: someShard(3), LSN: 9, Skip: 2}}}
		p.position.setBase(base.String())
		next := map[record.ShardID]checkpoint.Position{}
		for _, q := range base.Positions {
			next[q.Shard] = q
		}
		taken := 0
		want := map[record.ShardID]checkpoint.Position{someShard(1): next[someShard(1)], someShard(3): next[someShard(3)]}
		var err error
		for err == nil && taken < 400 {
			shard := someShard(rapid.Uint16Range(0, 4).Draw(t, "shard"))
			q, ok := next[shard]
			if !ok {
				q = checkpoint.Position{Shard: shard, LSN: 1}
			}
			if rapid.Bool().Draw(t, "next payload") {
				q.LSN, q.Skip = q.LSN+1, 0
			}
			payload := bytes.Repeat([]byte{'x'}, rapid.IntRange(0, 40).Draw(t, "length"))
			if err := p.printRecord(&consumer.Record{Payload: payload, Shard: shard, LSN: uint64(q.LSN), Index: int(q.Skip)}); err != nil {
				t.Fatal(err)
			}
			q.Skip++
			next[shard] = q
			if taken += len(payload) + 1; taken <= out.got.Len()+out.room {
				want[shard] = q
			}
			if rapid.IntRange(0, 3).Draw(t, "flush") == 0 {
				err = p.flushBuffer(context.Background())
			}
		}
		if ferr := p.flushBuffer(context.Background()); err == nil {
			err = ferr
		}
		if err != nil && !errors.Is(err, errFull) {
			t.Fatal(err)
		}
		got, perr := checkpoint.Parse(p.position.checkpointText())
		if perr != nil || len(got.Positions) != len(want) {
			t.Fatalf("%+v, %v, want %v", got, perr, want)
		}
		for shard, q := range want {
			if pos, _ := got.Position(shard); pos != q {
				t.Fatalf("shard %v: %+v, want %+v", shard, pos, q)
			}
		}
	})
}

// TestStuckOutput: a pipe that nobody empties holds up an end for the grace only, and what it took is known.
func TestStuckOutput(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	text := bytes.Repeat([]byte("0123456789"), 100_000)
	n, err := newOutput(w).writeBytes(ctx, text)
	if !errors.Is(err, errReader) || !errors.Is(err, context.Canceled) {
		t.Fatalf("%v", err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(r)
	if err != nil || !bytes.Equal(got, text[:n]) || n == 0 {
		t.Errorf("%d bytes are in the pipe, %v; %d were said to be", len(got), err, n)
	}
}

// TestShardList: what is read is written the same way, whatever the order.
func TestShardList(t *testing.T) {
	for in, want := range map[string]string{"3": "3", "4-7,0": "0,4-7", "2,1,0,1": "0-2", "65535": "65535"} {
		var l shardList
		if err := l.Set(in); err != nil || l.String() != want {
			t.Errorf("%q: %q, %v, want %q", in, l.String(), err, want)
		}
	}
	for _, in := range []string{"", ",", "1,", "-1", "1-", "7-4", "65536", "0-65536", "x", "1 2"} {
		if err := new(shardList).Set(in); err == nil || !strings.Contains(err.Error(), "0,4-7") {
			t.Errorf("%q: %v, want an error that shows how to write it", in, err)
		}
	}
}

// TestTailWindow: no window, the strict order, a duration and none at all are four things.
func TestTailWindow(t *testing.T) {
	for in, want := range map[string]time.Duration{"0": 0, "0s": 0, "250ms": 250 * time.Millisecond, "1d": 24 * time.Hour, "unbounded": consumer.Unbounded, "none": consumer.Unbounded} {
		var w tailWindow
		if err := w.Set(in); err != nil || !w.given || w.length != want {
			t.Errorf("%q: %+v, %v", in, w, err)
		}
		var again tailWindow
		if err := again.Set(w.String()); err != nil || again != w {
			t.Errorf("%q is written %q, which reads as %+v, %v", in, w.String(), again, err)
		}
	}
	for _, in := range []string{"", "1", "-1s", "forever"} {
		if err := new(tailWindow).Set(in); err == nil || !strings.Contains(err.Error(), "unbounded") {
			t.Errorf("%q: %v, want an error that says what there is", in, err)
		}
	}
}

// TestCheckpointFileLocks: a second user is refused, until the first has closed it.
func TestCheckpointFileLocks(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	first, err := openCheckpointFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := openCheckpointFile(path); err == nil || !strings.Contains(err.Error(), path+" is in use") {
		t.Errorf("a second user: %v", err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	second, err := openCheckpointFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := second.Close(); err != nil {
		t.Fatal(err)
	}
	large := filepath.Join(t.TempDir(), "large")
	if err := os.WriteFile(large, bytes.Repeat([]byte{'a'}, checkpoint.MaxText+100), 0o600); err != nil {
		t.Fatal(err)
	}
	f := &checkpointFile{path: large, real: large}
	if _, _, err := f.loadStart("c"); err == nil || !strings.Contains(err.Error(), fmt.Sprint(checkpoint.MaxText)) {
		t.Errorf("a file that is too large: %v", err)
	}
}

// TestStartOf: what --from takes, and that no text is taken for a damaged checkpoint which is none.
func TestStartOf(t *testing.T) {
	for _, text := range []string{"earliest", "latest", "2026-11-21T09:00:00Z", "15m", "3d"} {
		if _, err := startOf(text); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
	for text, want := range map[string]string{"tomorrow": "want earliest, latest", "scribe1.AAAA": "checkpoint", "scribe9.AAAA": "version"} {
		if _, err := startOf(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}
