package consumer_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"scribe/consumer"
	"scribe/consumer/columns"
	"scribe/internal/format/pointer"
	"scribe/internal/format/record"
	scribev1 "scribe/proto/scribe/v1"
)

// restrict makes a cell treat its reader as one whose grants are limited: of each payload it sends part, which change may adjust.
func (c *cell) restrict(part []byte, frames, messages uint32, change func(*scribev1.Payload)) {
	c.onStream = func(_ int, m *scribev1.StreamResponse) ([]*scribev1.StreamResponse, error) {
		if o := m.GetOpened(); o != nil {
			o.Restricted = true
		}
		return []*scribev1.StreamResponse{m}, nil
	}
	c.onFetch = func(_ int, req *scribev1.FetchRequest, res *scribev1.FetchResponse) error {
		if !req.GetAcceptsRestricted() {
			c.fault("a request does not say that it knows parts of payloads")
		}
		for i := range res.GetPayloads() {
			if req.GetView() != nil {
				continue // it is refused
			}
			p := &scribev1.Payload{Codec: uint32(pointer.CodecNone), Data: part, RawLength: uint64(len(part)), Crc: record.CRC(part), Restricted: &scribev1.PayloadRestriction{Frames: frames, Messages: messages}}
			if change != nil {
				change(p)
			}
			res.Payloads[i] = p
		}
		return nil
	}
}

// TestRestrictedPayloads: of a payload of which its reader may see a part, the part is delivered, and counts for positions; it is checked as a payload is.
func TestRestrictedPayloads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, shard := newCell(), shardID(0, 1)
		for range 2 {
			c.add(shard, "a", "b", "c", "d")
		}
		part := append(frame(0, "a", "c"), frame(0, "d")...)
		c.restrict(part, 2, 3, nil)
		r := open(t, c, consumer.WithUntilEnd())
		want(t, steps(t, r), nil, "a", "c", "d", "a", "c", "d")
		// A position is among the messages of the part.
		first := open(t, c, consumer.WithUntilEnd())
		n := 0
		for _, err := range first.Records(t.Context()) {
			if n++; err != nil || n == 4 {
				break
			}
		}
		rest := open(t, c, consumer.WithUntilEnd(), from(t, first.Checkpoint()))
		want(t, steps(t, rest), nil, "c", "d")
		// A payload without a visible message is passed over.
		c.restrict(nil, 0, 0, nil)
		want(t, steps(t, open(t, c, consumer.WithUntilEnd())), nil)
		for name, change := range map[string]func(*scribev1.Payload){
			"other messages": func(p *scribev1.Payload) { p.Restricted.Messages++ },
			"other frames":   func(p *scribev1.Payload) { p.Restricted.Frames++ },
			"another length": func(p *scribev1.Payload) { p.RawLength++ },
			"no length":      func(p *scribev1.Payload) { p.RawLength = 1 << 62 },
		} {
			c.restrict(part, 2, 3, change)
			failed := false
			for _, err := range open(t, c, consumer.WithUntilEnd()).Records(t.Context()) {
				failed = failed || errors.Is(err, consumer.ErrDamaged)
			}
			if !failed {
				t.Errorf("%s: delivered", name)
			}
		}
		c.check(t)
	})
}

// TestRestrictedGaps: the pointers of a restricted stream do not count messages, so a gap does not either.
func TestRestrictedGaps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, shard := newCell(), shardID(0, 1)
		c.add(shard, "a", "b")
		for _, restricted := range []bool{true, false} {
			c.restrict(nil, 0, 0, func(p *scribev1.Payload) {
				p.Error = &scribev1.ErrorInfo{Reason: scribev1.Reason_REASON_TRIMMED}
			})
			if !restricted {
				c.onStream = nil
			}
			gap := new(consumer.GapError)
			for _, err := range open(t, c, consumer.WithUntilEnd()).Records(t.Context()) {
				errors.As(err, &gap)
			}
			if gap.Reason != consumer.GapTrimmed || gap.Counted == restricted || gap.Messages != map[bool]uint64{false: 2}[restricted] || restricted == strings.Contains(gap.Error(), "2 messages") {
				t.Errorf("restricted %t: %v", restricted, gap)
			}
		}
	})
}

// TestMadeAnewByAnotherSchema: messages that were made anew by another version of the schema than a query is of are not taken for its rows: a column may have the name of another.
func TestMadeAnewByAnotherSchema(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, shard := newCell(), shardID(0, 1)
		c.schema = historyOf(t)
		c.addFrames(shard, rowsFrame(0, 0, `{"n":1}`, `{"n":2}`))
		for version, ends := range map[uint32]bool{0: false, 1: false, 2: true} {
			c.restrict(frame(0, `{"n":7}`), 1, 1, func(p *scribev1.Payload) { p.Restricted.SchemaVersion = version })
			q, err := columns.NewQuery(t.Context(), "", fmt.Sprintf("SELECT n FROM %q", categoryName), consumer.WithServices(c, c), consumer.WithControl(c), consumer.WithWindow(0))
			if err != nil {
				t.Fatal(err)
			}
			rows, failed := int64(0), error(nil)
			for batch, err := range q.Batches(t.Context()) {
				if failed = err; err == nil {
					rows += batch.NumRows()
				}
			}
			if ends != errors.Is(failed, consumer.ErrUnavailable) || ends != (rows == 0) || ends && !strings.Contains(failed.Error(), "begin again") {
				t.Errorf("version %d: %d rows, %v", version, rows, failed)
			}
			if err := q.Close(); err != nil {
				t.Error(err)
			}
		}
	})
}
