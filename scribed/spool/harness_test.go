package spool

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"pgregory.net/rapid"

	"scribe/storage/blob/encryption"
)

const testDir = "/data/spool"

// testConfig is a small spool.
func testConfig() Config {
	c := DefaultConfig()
	c.Dir = testDir
	c.MaxBytes, c.SegmentBytes, c.BallastBytes = 256<<10, 8<<10, 16<<10
	c.UnsyncedBytes, c.IndexBytes, c.QuarantineBytes = 64<<10, 2<<10, 64<<10
	c.SyncInterval, c.StateInterval = time.Hour, time.Hour // only when asked
	return c
}

// testWrapper wraps the keys of the spools of the test that runs; nil: they are not encrypted. See TestEncrypted.
var testWrapper encryption.Wrapper

func testDeps(fs vfs.FS) Deps { return Deps{FS: fs, Logger: newLossLog(), Wrapper: testWrapper} }

func openSpool(tb testing.TB, c Config, fs vfs.FS) *Spool {
	tb.Helper()
	s, err := Open(c, testDeps(fs))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := s.Close(); err != nil && !errors.Is(err, ErrClosed) {
			tb.Log("close:", err)
		}
	})
	return s
}

// lossLog is a log handler that keeps the damage that a spool has logged.
type lossLog struct {
	slog.Handler

	mu     sync.Mutex
	losses []damageLoss
}

func newLossLog() *slog.Logger { return slog.New(&lossLog{Handler: slog.DiscardHandler}) }

func (h *lossLog) Enabled(context.Context, slog.Level) bool { return true }

func (h *lossLog) WithAttrs([]slog.Attr) slog.Handler { return h }

func (h *lossLog) Handle(_ context.Context, r slog.Record) error {
	if r.Message != "damaged range in a segment" {
		return nil
	}
	var l damageLoss
	r.Attrs(func(a slog.Attr) bool {
		switch a.Key {
		case "segment":
			l.Segment = a.Value.Uint64()
		case "from":
			l.From = a.Value.Int64()
		case "to":
			l.To = a.Value.Int64()
		case "records":
			l.Records = a.Value.Int64()
		case "category":
			l.Category = a.Value.String()
		case "quarantine":
			l.QuarantineFile = a.Value.String()
		}
		return true
	})
	h.mu.Lock()
	defer h.mu.Unlock()
	h.losses = append(h.losses, l)
	return nil
}

// Losses returns the damage that was logged since Open or the last call.
func (s *Spool) Losses() []damageLoss {
	h := s.logger.Handler().(*lossLog)
	h.mu.Lock()
	defer h.mu.Unlock()
	out := h.losses
	h.losses = nil
	return out
}

// Lost returns what the metrics count as damaged.
func (s *Spool) Lost() Amount {
	m := s.metrics.lost
	return Amount{int64(testutil.ToFloat64(m.records)), int64(testutil.ToFloat64(m.messages)), int64(testutil.ToFloat64(m.bytes))}
}

// Dropped returns what was dropped of each category since the folder was created.
func (s *Spool) Dropped() map[string]Amount {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.mu.dropped)
}

// Queue returns the amounts held of a category.
func (s *Spool) Queue(category string) CategorySums {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.describeQueue(category)
}

// payload is a record's data that says what it is.
func payload(category string, n, size int) []byte {
	head := fmt.Sprintf("%s#%d|", category, n)
	b := bytes.Repeat([]byte{byte(n), byte(n >> 8), 0x8a, 'S'}, size/4+1)
	return append([]byte(head), b[:max(0, size-len(head))]...)
}

// appendRecords appends records, which join the backlog unless claimed.
func appendRecords(s *Spool, recs []Record, claimed bool) ([]Ref, error) {
	refs, err := s.Append(recs)
	if !claimed {
		s.Release(refs...)
	}
	return refs, err
}

func appendOne(tb rapid.TB, s *Spool, category string, n, size int, claimed bool) Ref {
	tb.Helper()
	refs, err := appendRecords(s, []Record{{Category: category, Messages: n%7 + 1, Data: payload(category, n, size)}}, claimed)
	if err != nil {
		tb.Fatal(err)
	}
	return refs[0]
}

func syncAll(tb rapid.TB, s *Spool) {
	tb.Helper()
	if err := s.Sync(context.Background()); err != nil {
		tb.Fatal(err)
	}
}

// settle waits until the keeper has sealed and reclaimed what it can.
func settle(tb rapid.TB, s *Spool) {
	tb.Helper()
	syncAll(tb, s)
	for {
		s.mu.Lock()
		changed := s.mu.changed
		busy := len(s.mu.trash) > 0
		for _, g := range s.mu.segments {
			busy = busy || g.state == sealing || g.state == failed || g.held == 0 && g.state == sealed
		}
		s.mu.Unlock()
		if !busy {
			return
		}
		s.kickKeeper.WakeUp()
		select {
		case <-changed:
		case <-time.After(time.Millisecond):
		}
	}
}

// saveNow lets the keeper save the state.
func saveNow(tb rapid.TB, s *Spool) {
	tb.Helper()
	for {
		s.mu.Lock()
		saved := s.mu.stateSaved == s.mu.changes
		s.mu.stateDirty = time.Now().Add(-2 * s.cfg.StateInterval)
		s.mu.Unlock()
		if saved {
			return
		}
		s.kickKeeper.WakeUp()
		<-time.After(time.Millisecond)
	}
}

// claimAll takes everything of a category.
func claimAll(tb rapid.TB, s *Spool, category string) []ClaimedRecord {
	tb.Helper()
	var out []ClaimedRecord
	for {
		got, err := s.Claim(category, 3000, ^Position(0), nil)
		if err != nil {
			tb.Fatal(err)
		}
		if len(got) == 0 {
			return out
		}
		out = append(out, got...)
	}
}

func refsOfClaimed(claimed []ClaimedRecord) []Ref {
	out := make([]Ref, len(claimed))
	for i := range claimed {
		out[i] = claimed[i].Ref
	}
	return out
}

// check compares the book's sums with what its parts say.
func check(tb rapid.TB, s *Spool) {
	tb.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	var parts, categories recordSums
	for _, g := range s.mu.segments {
		var records int64
		for _, p := range g.parts {
			parts.plus(p.recordSums)
			records += p.held.Records
			if p.held.Records > 0 && s.mu.categories[p.cat.name] != p.cat {
				tb.Fatalf("a part of %s is not its category's", p.cat.name)
			}
			if p.seg != g {
				tb.Fatalf("a part of %s is another segment's", g.path)
			}
		}
		if records != g.held {
			tb.Fatalf("%s: %d held, its parts say %d", g.path, g.held, records)
		}
	}
	for _, c := range s.mu.categories {
		categories.plus(c.recordSums)
	}
	if parts != s.mu.sums || categories != s.mu.sums {
		tb.Fatalf("the spool says %+v, its parts %+v, its categories %+v", s.mu.sums, parts, categories)
	}
	var cached Amount
	for _, c := range s.mu.claims {
		cached.plus(c.sums().cached)
	}
	if cached != s.mu.sums.cached {
		tb.Fatalf("%+v are cached, the claims say %+v", s.mu.sums.cached, cached)
	}
	claimed := s.mu.sums.held
	claimed.minus(s.mu.sums.unclaimed)
	if int64(len(s.mu.claims)) != claimed.Records {
		tb.Fatalf("%d claims for %d claimed records", len(s.mu.claims), claimed.Records)
	}
}
