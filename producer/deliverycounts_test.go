package producer_test

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"scribe/internal/format/delivery"
	"scribe/internal/format/record"
	"scribe/producer"
	scribev1 "scribe/proto/scribe/v1"
)

// counted are the rows that a server was sent.
type counted struct {
	mu   sync.Mutex
	rows []delivery.Row
	at   []int64 // minutes
}

// take notes the rows of a request, and reports whether it has any.
func (c *counted) take(t *testing.T, req *scribev1.WriteRequest) (any bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for f, err := range record.Split(req.GetFrames()) {
		if err != nil {
			t.Error(err)
			return any
		}
		if f.CategoryName() != delivery.Category {
			continue
		}
		any = true
		err := delivery.RowsOf(f.Bytes, func(r *delivery.Row, minute int64) error {
			c.rows, c.at = append(c.rows, *r), append(c.at, minute)
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
	return any
}

// lines adds the rows of a category up.
func (c *counted) lines(category string) []delivery.Line {
	c.mu.Lock()
	defer c.mu.Unlock()
	a := delivery.NewAccount(category, time.Unix(0, 0))
	for i := range c.rows {
		a.AddRow(&c.rows[i], c.at[i], time.Unix(0, 0))
	}
	return a.Lines()
}

// What a producer takes and what becomes of it is counted by minute, exactly, whatever happens to the counts on their way.
func TestDeliveryIsCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var (
			got  counted
			away atomic.Bool
			asks atomic.Int64
		)
		s := &server{fault: func(_ int, req *scribev1.WriteRequest) *fault {
			if away.Load() {
				return &fault{before: refusal(scribev1.Reason_REASON_NO_BACKEND, 0)}
			}
			if got.take(t, req) && asks.Add(1) == 1 {
				return &fault{after: refusal(scribev1.Reason_REASON_UNKNOWN_OUTCOME, 0)} // they are stored, and sent again
			}
			return &fault{
				sample: func(h record.Header) bool { return h.CategoryName() == "a" && h.FirstSequence == 1 },
				frame: func(h record.Header) *scribev1.ErrorInfo {
					if h.CategoryName() == "refused" {
						return &scribev1.ErrorInfo{Reason: scribev1.Reason_REASON_DENIED}
					}
					return nil
				},
			}
		}}
		p, err := producer.New("", producer.WithService(s), producer.WithHost("host-7"), producer.WithDeliveryReports(time.Second),
			producer.WithMaxBufferedBytes(256<<10), producer.WithLinger(0))
		if err != nil {
			t.Fatal(err)
		}
		write := func(level producer.AckLevel, category string) error {
			return p.WithCallAck(level).Write(t.Context(), category, producer.Message{Payload: []byte("x")})
		}
		for range 3 { // one is left out
			if err := write(producer.AckCommitted, "a"); err != nil {
				t.Fatal(err)
			}
			<-time.After(30 * time.Second) // two in the first minute
		}
		if err := write(producer.AckNone, "a"); err != nil {
			t.Fatal(err)
		}
		if write(producer.AckCommitted, "refused") == nil {
			t.Error("a message that was refused was acknowledged")
		}
		if err := p.WriteAtomic(t.Context(), "atomic", 0, producer.Message{Payload: []byte("x")}, producer.Message{Payload: []byte("y")}); err != nil {
			t.Fatal(err)
		}
		away.Store(true)
		for range 1000 {
			p.Log("full", []byte(strings.Repeat("x", 1000)))
		}
		<-time.After(30 * time.Second)
		away.Store(false)
		if err := p.Close(t.Context()); err != nil {
			t.Error(err)
		}
		stats := p.Stats()
		lines := got.lines("a")
		if len(lines) != 2 || lines[0].Host != "host-7" || lines[0].Produced != 2 || lines[0].Stored != 1 || lines[0].Sampled != 1 || lines[0].Rate != 2 ||
			lines[1].Produced != 2 || lines[1].Stored != 1 || lines[1].Unaccounted != 1 || lines[1].Pending != 0 { // nobody knows what became of the one that nobody waited for
			t.Errorf("of a: %+v", lines)
		}
		if l := got.lines("refused"); len(l) != 1 || l[0].Produced != 1 || l[0].Dropped != 1 || l[0].Reasons["library:refused"] != 1 {
			t.Errorf("of refused: %+v", l)
		}
		if l := got.lines("atomic"); len(l) != 1 || l[0].Produced != 2 || l[0].Stored != 2 {
			t.Errorf("of atomic: %+v", l)
		}
		lost := int64(stats.Dropped[producer.DropBufferFull]) //nolint:gosec // a test's
		if l := got.lines("full"); len(l) != 1 || l[0].Produced != 1000 || lost == 0 || l[0].Dropped != lost || l[0].Reasons["library:buffer_full"] != lost ||
			l[0].Stored != 1000-lost || l[0].Pending != 0 {
			t.Errorf("of full: %+v, %d were dropped", l, lost)
		}
	})
}

// What a producer could not deliver before it was closed is told, if the server takes at least that.
func TestDeliveryAtTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got counted
		s := &server{fault: func(_ int, req *scribev1.WriteRequest) *fault {
			if !got.take(t, req) {
				return &fault{before: refusal(scribev1.Reason_REASON_NO_BACKEND, 0)}
			}
			return nil
		}}
		p, err := producer.New("", producer.WithService(s), producer.WithDeliveryReports(time.Hour))
		if err != nil {
			t.Fatal(err)
		}
		for range 7 {
			p.Log("a", []byte("x"))
		}
		<-time.After(time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if p.Close(ctx) == nil {
			t.Error("everything was delivered")
		}
		l := got.lines("a")
		if len(l) != 1 || l[0].Produced != 7 || l[0].Dropped != 7 || l[0].Reasons["library:closed"] != 7 {
			t.Errorf("%+v", l)
		}
	})
}
