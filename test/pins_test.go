package test

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"scribe/consumer"
	"scribe/test/program"
)

// brief is a cell whose collector is in a hurry, and in which categories live for a minute, the shortest that there is.
type brief struct {
	*cell

	t     *testing.T
	data  string
	up    *program.Process
	known []string // blobs
}

func newBrief(t *testing.T, env ...string) *brief {
	t.Helper()
	data := filepath.Join(t.TempDir(), "data")
	up := serve(t, append(slices.Clone(hasty), env...), "up", "--data", data, "--listen", "127.0.0.1:0")
	return &brief{t: t, cell: &cell{write: up.URL, read: up.URL}, data: data, up: up}
}

// write creates a category, stores each message as a payload of its own, and returns their blobs.
func (b *brief) write(category string, messages ...[]byte) (blobs []string) {
	b.t.Helper()
	ok(b.t, nil, "category", "create", category, "--retention", "1m", "--server", b.up.URL)
	for _, m := range messages {
		produce(b.t, b.cell, category, append(slices.Clone(m), '\n'))
	}
	for _, blob := range blobFiles(b.t, b.data) {
		if !slices.Contains(b.known, blob) {
			blobs = append(blobs, blob)
		}
	}
	b.known = append(b.known, blobs...)
	if len(blobs) != len(messages) {
		b.t.Fatalf("%d blobs of %d messages", len(blobs), len(messages))
	}
	return blobs
}

// there is how many of some blobs there are.
func (b *brief) there(blobs []string) (n int) {
	b.t.Helper()
	for _, blob := range blobs {
		switch _, err := os.Stat(blob); {
		case err == nil:
			n++
		case !errors.Is(err, os.ErrNotExist):
			b.t.Fatal(err)
		}
	}
	return n
}

// reading is an iteration that a test takes step by step.
type reading struct {
	t    *testing.T
	next func() (consumer.Record, error, bool)
}

func read(t *testing.T, records iter.Seq2[consumer.Record, error]) *reading {
	next, stop := iter.Pull2(records)
	t.Cleanup(stop)
	return &reading{t, next}
}

// message is the next one, which must be there.
func (r *reading) message(want string) {
	r.t.Helper()
	rec, err, more := r.next()
	if err != nil || !more || string(rec.Payload) != want {
		r.t.Fatalf("%q, %v (%v), want %q", rec.Payload, err, more, want)
	}
}

// lost reads to the end, where nothing may come but gaps that retention made, and returns how many pointers these are of.
func (r *reading) lost() (pointers uint64) {
	r.t.Helper()
	for {
		rec, err, more := r.next()
		gap := new(consumer.GapError)
		switch {
		case !more:
			return pointers
		case errors.As(err, &gap) && gap.Reason == consumer.GapTrimmed:
			pointers += gap.Pointers()
		default:
			r.t.Fatalf("%.100q, %v", rec.Payload, err)
		}
	}
}

// texts are messages of a few bytes.
func texts(n int) (out [][]byte) {
	for i := range n {
		out = append(out, fmt.Appendf(nil, "message %d", i))
	}
	return out
}

// TestReadersHoldRetentionBack: what a group has not committed, and what a reader was sent and has not consumed, stays beyond its retention for
// as long as they hold it, and goes when they let it go; that is a gap for who comes back.
func TestReadersHoldRetentionBack(t *testing.T) {
	t.Parallel()
	b := newBrief(t, "SCRIBE_RETENTION_PIN_LIMIT=1h")
	began := time.Now()
	grouped, streamed, free := b.write("grouped", texts(3)...), b.write("streamed", texts(3)...), b.write("free", texts(3)...)
	member := func() *consumer.Group {
		g, err := consumer.NewGroup(b.up.URL, "grouped", "readers", consumer.WithStart(consumer.Earliest()), consumer.WithUntilEnd(), consumer.WithAutoCommit(0))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = g.Close() })
		return g
	}
	// The group has read all and committed a part. Its stream is over, so only the group holds what is left.
	g := member()
	r := read(t, g.Records(t.Context()))
	r.message("message 0")
	if err := g.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.message("message 1")
	r.message("message 2")
	if n := r.lost(); n != 0 {
		t.Fatalf("%d pointers are lost", n)
	}
	// The reader stands in its first message, and its stream is open. It was sent the other two.
	c, err := consumer.New(b.up.URL, "streamed", consumer.WithStart(consumer.Earliest()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	slow := read(t, c.Records(t.Context()))
	slow.message("message 0")

	eventually(t, 5*time.Minute, "what nobody needs is removed", func() bool { return b.there(free) == 0 })
	here := []int{b.there(grouped), b.there(streamed)}
	if age := time.Since(began); age >= 2*time.Minute {
		// Nobody holds anything for longer than its retention once more.
		t.Logf("it took %v: nothing can be said of what is held", age)
	} else if want := []int{3, 3}; !slices.Equal(here, want) {
		t.Errorf("of what readers need %v blobs are left after %v, want %v", here, age, want)
	} else {
		slow.message("message 1")
		slow.message("message 2")
	}
	if err := g.Close(); err != nil {
		t.Error(err)
	}
	eventually(t, 5*time.Minute, "what the group has let go is trimmed", func() bool { return len(tail(t, b.cell, "grouped")) == 0 })
	if n := read(t, member().Records(t.Context())).lost(); n != 2 {
		t.Errorf("%d pointers of 2 are lost for the group", n)
	}
}

// TestTrimmedBetweenSendAndFetch: a reader that was sent pointers, and fetches what they stand for after retention has taken it, is told of a
// gap, and goes on behind it.
func TestTrimmedBetweenSendAndFetch(t *testing.T) {
	t.Parallel()
	b := newBrief(t) // no reader holds anything
	const messages = 5
	var written [][]byte
	for range messages {
		m := make([]byte, 20<<10)
		_, _ = rand.Read(m) // it never fails
		written = append(written, []byte(hex.EncodeToString(m)))
	}
	blobs := b.write("trimmed", written...)
	// There is room for one payload, and the credits are for two.
	c, err := consumer.New(b.up.URL, "trimmed", consumer.WithStart(consumer.Earliest()), consumer.WithUntilEnd(), consumer.WithPrefetchBytes(64<<10))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	r := read(t, c.Records(t.Context()))
	r.message(string(written[0]))
	if n := c.Stats().FetchedBytes; n > 50<<10 {
		t.Fatalf("%d bytes were fetched, which is more than the first payload: the test does not test", n)
	}
	eventually(t, 5*time.Minute, "what has expired is removed", func() bool { return b.there(blobs) == 0 })
	if n := r.lost(); n != messages-1 {
		t.Errorf("%d pointers are lost, want %d", n, messages-1)
	}
	// What the checkpoint says is behind them, too.
	at := c.Checkpoint()
	produce(t, b.cell, "trimmed", []byte("again\n"))
	sameBytes(t, "behind the gap", ok(t, nil, "tail", "trimmed", "--from", at, "--until-end", "-o", "raw", "--server", b.up.URL), []byte("again\n"))
}
