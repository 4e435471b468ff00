package consumer_test

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"scribe/consumer"
	"scribe/internal/format/pointer"
	"scribe/internal/format/record"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

var errBroken = errors.New("connection reset")

// refusal is an error of a server.
func refusal(r scribev1.Reason, after time.Duration) error {
	return rpc.RetryErrorf(r, after, "refused with %v", r)
}

func TestGapsAreEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCell()
		shard := shardID(0, 1)
		for i := range 6 {
			c.add(shard, fmt.Sprint(i, "a"), fmt.Sprint(i, "b"))
		}
		var told []*consumer.GapError
		r := open(t, c, consumer.WithUntilEnd(), consumer.WithOnGap(func(g *consumer.GapError) { told = append(told, g) }))
		got, err := read(t.Context(), r, 3)
		want(t, got, err, "0a", "0b", "1a")
		c.trim(shard, 5)
		var texts []string
		for rec, err := range r.Records(t.Context()) {
			gap := new(consumer.GapError)
			if errors.As(err, &gap) {
				if !errors.Is(err, consumer.ErrGap) || gap.Shard != shard || gap.From != 2 || gap.To != 5 || gap.Delivered != 1 || gap.Reason != consumer.GapTrimmed ||
					gap.Category != categoryName || !strings.Contains(err.Error(), "LSN 2 to 4") {
					t.Errorf("gap is %+v: %v", gap, err)
				}
				// A gap that was told is not told again.
				again := open(t, c, consumer.WithUntilEnd(), from(t, r.Checkpoint()))
				got, err := read(t.Context(), again, 0)
				want(t, got, err, "4a", "4b", "5a", "5b")
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			texts = append(texts, string(rec.Payload))
		}
		want(t, texts, nil, "4a", "4b", "5a", "5b")
		if len(told) != 1 || r.Stats().Gaps != 1 {
			t.Errorf("told of %v", told)
		}
		// A bounded iteration ends where everything up to its end is gone, too.
		fresh := open(t, c, consumer.WithUntilEnd())
		c.onStream = func(_ int, m *scribev1.StreamResponse) ([]*scribev1.StreamResponse, error) {
			if m.GetOpened() != nil {
				c.trim(shard, 7)
			}
			return []*scribev1.StreamResponse{m}, nil
		}
		_, err = read(t.Context(), fresh, 0)
		gap := new(consumer.GapError)
		if !errors.As(err, &gap) || gap.From != 5 || gap.To != 7 {
			t.Errorf("gap is %v", err)
		}
		got, err = read(t.Context(), fresh, 0)
		want(t, got, err)
	})
}

// damaged says what each kind of damage does to the third payload of five.
var damaged = map[string]struct {
	payload func(p *scribev1.Payload)
	frames  func() []byte // instead of the payload's
	reason  consumer.GapReason
	what    string
	// delivered is how many messages come before the damage is met.
	delivered int
}{
	"checksum":    {payload: func(p *scribev1.Payload) { p.Data[3] ^= 1 }, what: "payload checksum"},
	"length":      {payload: func(p *scribev1.Payload) { p.RawLength++ }, what: "payload length"},
	"codec":       {payload: func(p *scribev1.Payload) { p.Codec = 300 }, what: "payload codec"},
	"compression": {payload: func(p *scribev1.Payload) { p.Codec = 2; p.Data = []byte("x"); p.Crc = record.CRC(p.Data) }, what: "compressed"},
	"truncated":   {payload: func(p *scribev1.Payload) { p.Codec = 1; p.Data = p.Data[:5]; p.Crc = record.CRC(p.Data) }, what: "payload length"},
	"object": {
		payload: func(p *scribev1.Payload) { p.Error = &scribev1.ErrorInfo{Reason: scribev1.Reason_REASON_CORRUPT} },
		what:    "object",
	},
	"missing": {
		payload: func(p *scribev1.Payload) { p.Error = &scribev1.ErrorInfo{Reason: scribev1.Reason_REASON_MISSING} },
		what:    "object", reason: consumer.GapMissing,
	},
	"another payload": {frames: func() []byte { return frame(0, "2a", strings.Repeat("x", 75)) }, what: "payload: 1 frames of 2"},
	"another shard":   {frames: func() []byte { return slices.Concat(frame(0, "2a"), frame(1, "2b")) }, what: "frame 1"},
	"another category": {frames: func() []byte {
		b := record.Builder{}
		if err := errors.Join(b.Reset(nil, record.Envelope{Category: "web.acces2"}), b.AppendPayload([]byte("2b"))); err != nil {
			panic(err)
		}
		f, err := b.Finish()
		if err != nil {
			panic(err)
		}
		return slices.Concat(frame(0, "2a"), f)
	}, what: "frame 1"},
	"message": {frames: func() []byte {
		f := slices.Concat(frame(0, "2a"), frame(0, "2b"))
		f[len(f)-1] ^= 1
		return f
	}, what: "frame 1", delivered: 1},
	"header": {frames: func() []byte {
		f := slices.Concat(frame(0, "2a"), frame(0, "2b"))
		f[len(f)/2+20] ^= 1
		return f
	}, what: "frame 1"},
}

func damagedCell(frames func() []byte, payload func(*scribev1.Payload)) *cell {
	c := newCell()
	c.perMessage = 1
	for i := range 5 {
		c.addFrames(shardID(0, 1), frame(0, fmt.Sprint(i, "a")), frame(0, fmt.Sprint(i, "b")))
	}
	third := string(c.logs[shardID(0, 1)].entries[2].pointer)
	if frames != nil {
		st := c.payloads[third]
		f := frames()
		if len(f) != st.raw { // then what differs is the length, which is another case
			f = append(f, make([]byte, st.raw)...)[:st.raw]
		}
		st.codec, st.data = pointer.CodecNone, f
	}
	if payload != nil {
		c.onFetch = func(_ int, req *scribev1.FetchRequest, res *scribev1.FetchResponse) error {
			for i, p := range req.GetPointers() {
				if string(p) == third {
					payload(res.GetPayloads()[i])
				}
			}
			return nil
		}
	}
	return c
}

// TestOriginIsNoGap: a consumer that has read nothing of a log goes on where it began in a recovery, without a word, also after another one that
// finds it unread. A consumer that has read something is told.
func TestOriginIsNoGap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCell()
		shard := shardID(0, 1)
		for i := range 6 {
			c.add(shard, fmt.Sprint(i))
		}
		some := open(t, c, consumer.WithUntilEnd())
		got, err := read(t.Context(), some, 2)
		want(t, got, err, "0", "1")
		c.onStream = func(_ int, m *scribev1.StreamResponse) ([]*scribev1.StreamResponse, error) {
			if m.GetOpened() != nil {
				c.trim(shard, 5)
			}
			if g := m.GetGap(); g != nil {
				g.BeforeOrigin = true
			}
			return []*scribev1.StreamResponse{m}, nil
		}
		none := open(t, c, consumer.WithUntilEnd())
		got, err = read(t.Context(), none, 1)
		want(t, got, err, "4")
		again := open(t, c, consumer.WithUntilEnd(), from(t, none.Checkpoint()))
		got, err = read(t.Context(), again, 0)
		want(t, got, err, "5")
		if none.Stats().Gaps != 0 || again.Stats().Gaps != 0 {
			t.Errorf("%d and %d gaps", none.Stats().Gaps, again.Stats().Gaps)
		}
		_, err = read(t.Context(), some, 0)
		gap := new(consumer.GapError)
		if !errors.As(err, &gap) || gap.From != 3 || gap.To != 5 {
			t.Errorf("gap is %v", err)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		c := newCell()
		shard := shardID(0, 1)
		origin := record.LSN(7)
		for i := range 6 {
			c.add(shard, fmt.Sprint(i))
		}
		c.onStream = func(_ int, m *scribev1.StreamResponse) ([]*scribev1.StreamResponse, error) {
			if m.GetOpened() != nil {
				c.trim(shard, origin)
			}
			if g := m.GetGap(); g != nil {
				g.BeforeOrigin = true
			}
			return []*scribev1.StreamResponse{m}, nil
		}
		r := open(t, c, consumer.WithUntilEnd())
		got, err := read(t.Context(), r, 0)
		want(t, got, err)
		known := r.Checkpoint()
		c.add(shard, "lost")
		c.add(shard, "last")
		origin = 8 // where the second recovery lets it begin
		got, err = read(t.Context(), r, 0)
		want(t, got, err, "last")
		restarted := open(t, c, consumer.WithUntilEnd(), from(t, known))
		got, err = read(t.Context(), restarted, 0)
		want(t, got, err, "last")
		if r.Stats().Gaps != 0 || restarted.Stats().Gaps != 0 {
			t.Errorf("%d and %d gaps", r.Stats().Gaps, restarted.Stats().Gaps)
		}
	})
}

func TestDamage(t *testing.T) {
	for name, d := range damaged {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				good := []string{"0a", "0b", "1a", "1b", "2a"}[:4+d.delivered]
				c := damagedCell(d.frames, d.payload)
				r := open(t, c, consumer.WithUntilEnd())
				for range 2 { // it stays where it is
					got, err := read(t.Context(), r, 0)
					damage := new(consumer.DamageError)
					if !errors.Is(err, consumer.ErrDamaged) || !errors.As(err, &damage) || damage.LSN != 3 || damage.Shard != shardID(0, 1) ||
						!strings.Contains(err.Error(), d.what) {
						t.Errorf("error is %v", err)
					}
					want(t, got, nil, good...)
					good = nil
				}

				good = []string{"0a", "0b", "1a", "1b", "2a"}[:4+d.delivered]
				r = open(t, c, consumer.WithUntilEnd(), consumer.WithDamage(consumer.DamageSkip))
				var got []string
				for rec, err := range r.Records(t.Context()) {
					gap := new(consumer.GapError)
					if errors.As(err, &gap) {
						reason := consumer.GapDamaged
						if d.reason != "" {
							reason = d.reason
						}
						if gap.From != 3 || gap.To != 4 || gap.Reason != reason || int(gap.Delivered) != d.delivered || !errors.Is(err, consumer.ErrDamaged) {
							t.Errorf("gap is %+v", gap)
						}
						continue
					}
					if err != nil {
						t.Fatal(err)
					}
					got = append(got, string(rec.Payload))
				}
				want(t, got, nil, append(good, "3a", "3b", "4a", "4b")...)
			})
		})
	}
}

// Bytes that were damaged on the way are fetched again.
func TestDamageInTransit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		c := damagedCell(nil, func(p *scribev1.Payload) {
			if n++; n <= 2 {
				p.Data[0] ^= 0x80
			}
		})
		got, err := read(t.Context(), open(t, c, consumer.WithUntilEnd()), 0)
		want(t, got, err, "0a", "0b", "1a", "1b", "2a", "2b", "3a", "3b", "4a", "4b")
	})
}

func TestDamagedPointer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCell()
		for i := range 3 {
			c.add(shardID(0, 1), fmt.Sprint(i))
		}
		c.logs[shardID(0, 1)].entries[1].pointer[5] ^= 1
		_, err := read(t.Context(), open(t, c, consumer.WithUntilEnd()), 0)
		if !errors.Is(err, consumer.ErrDamaged) || !errors.Is(err, pointer.ErrCorrupt) {
			t.Errorf("error is %v", err)
		}
		var got []string
		for rec, err := range open(t, c, consumer.WithUntilEnd(), consumer.WithDamage(consumer.DamageSkip)).Records(t.Context()) {
			if err == nil {
				got = append(got, string(rec.Payload))
			}
		}
		want(t, got, nil, "0", "2")
	})
}

func TestTrimmedWhileBeingFetched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := damagedCell(nil, func(p *scribev1.Payload) { p.Error = &scribev1.ErrorInfo{Reason: scribev1.Reason_REASON_TRIMMED} })
		var gap *consumer.GapError
		n := 0
		for _, err := range open(t, c, consumer.WithUntilEnd()).Records(t.Context()) {
			if err != nil && !errors.As(err, &gap) {
				t.Fatal(err)
			}
			n++
		}
		if n != 9 || gap == nil || gap.Reason != consumer.GapTrimmed || gap.From != 3 {
			t.Errorf("%d steps, gap %v", n, gap)
		}
	})
}

// A stream that breaks, is evicted, or falls silent is opened again where it was.
func TestStreamsThatEnd(t *testing.T) {
	ends := map[string]func(m *scribev1.StreamResponse) ([]*scribev1.StreamResponse, error){
		"broken": func(*scribev1.StreamResponse) ([]*scribev1.StreamResponse, error) { return nil, errBroken },
		"broken after": func(m *scribev1.StreamResponse) ([]*scribev1.StreamResponse, error) {
			// The connection breaks when the message has arrived.
			return []*scribev1.StreamResponse{m, nil}, nil
		},
		"evicted": func(*scribev1.StreamResponse) ([]*scribev1.StreamResponse, error) {
			return []*scribev1.StreamResponse{{Step: &scribev1.StreamResponse_Evicted{Evicted: &scribev1.StreamEvicted{Reason: scribev1.Reason_REASON_SHUTTING_DOWN}}}, nil}, nil
		},
		"refused": func(*scribev1.StreamResponse) ([]*scribev1.StreamResponse, error) {
			return nil, refusal(scribev1.Reason_REASON_OVERLOADED, 3*time.Second)
		},
		"silent": func(*scribev1.StreamResponse) ([]*scribev1.StreamResponse, error) {
			<-time.After(15 * time.Second)
			return nil, nil
		},
		"a hole": func(*scribev1.StreamResponse) ([]*scribev1.StreamResponse, error) { return nil, nil }, // a message is lost
		"twice": func(m *scribev1.StreamResponse) ([]*scribev1.StreamResponse, error) {
			return []*scribev1.StreamResponse{m, m}, nil
		},
		"unknown step": func(m *scribev1.StreamResponse) ([]*scribev1.StreamResponse, error) {
			return []*scribev1.StreamResponse{{}, m}, nil
		},
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCell()
				c.perMessage = 3
				var all []string
				for i := range 40 {
					texts := []string{fmt.Sprint(i, "a"), fmt.Sprint(i, "b")}
					all = append(all, texts...)
					c.add(shardID(0, uint16(1+i%3)), texts...)
				}
				entries := 0
				c.onStream = func(n int, m *scribev1.StreamResponse) ([]*scribev1.StreamResponse, error) {
					if m.GetEntries() != nil {
						if entries++; entries%4 == 0 && entries < 30 {
							return end(m)
						}
					}
					if m.GetOpened() != nil && n == 3 {
						return end(m)
					}
					return []*scribev1.StreamResponse{m}, nil
				}
				// A nil message stands for the end of the stream.
				got, err := read(t.Context(), open(t, breaking{c}.cell, consumer.WithServices(breaking{c}, c), consumer.WithUntilEnd()), 0)
				want(t, got, err, all...)
			})
		})
	}
}

// breaking ends streams at nil messages.
type breaking struct{ *cell }

func (b breaking) Stream(ctx ctxt, recv recvFunc, send func(*scribev1.StreamResponse) error) error {
	return b.cell.Stream(ctx, recv, func(m *scribev1.StreamResponse) error {
		if m == nil {
			return errBroken
		}
		return send(proto.CloneOf(m))
	})
}

func TestStreamsThatContradictThemselves(t *testing.T) {
	entries := func(e ...*scribev1.StreamEntry) *scribev1.StreamResponse {
		return &scribev1.StreamResponse{Step: &scribev1.StreamResponse_Entries{Entries: &scribev1.StreamEntries{Entries: e}}}
	}
	shard := uint64(shardID(0, 1))
	for name, m := range map[string]*scribev1.StreamResponse{
		"unknown shard": entries(&scribev1.StreamEntry{Shard: 99, Lsn: 1}),
		"hole":          entries(&scribev1.StreamEntry{Shard: shard, Lsn: 3}),
		"gap elsewhere": {Step: &scribev1.StreamResponse_Gap{Gap: &scribev1.StreamGap{Shard: 99, From: 1, To: 2}}},
		"gap beyond":    {Step: &scribev1.StreamResponse_Gap{Gap: &scribev1.StreamGap{Shard: shard, From: 5, To: 6}}},
		"opened twice":  {Step: &scribev1.StreamResponse_Opened{Opened: &scribev1.StreamOpened{}}},
		"shard at 0":    {Step: &scribev1.StreamResponse_ShardAdded{ShardAdded: &scribev1.StreamShard{Shard: 5}}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCell()
				c.add(shardID(0, 1), "1")
				c.onStream = func(_ int, o *scribev1.StreamResponse) ([]*scribev1.StreamResponse, error) {
					return []*scribev1.StreamResponse{o, m}, nil
				}
				got, err := read(t.Context(), open(t, c), 0)
				if !errors.Is(err, consumer.ErrProtocol) || c.streams < 3 {
					t.Errorf("after %d streams: %v, %q", c.streams, err, got)
				}
			})
		})
	}
	t.Run("not opened", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c := newCell()
			c.onStream = func(int, *scribev1.StreamResponse) ([]*scribev1.StreamResponse, error) {
				return []*scribev1.StreamResponse{entries()}, nil
			}
			if _, err := read(t.Context(), open(t, c), 0); !errors.Is(err, consumer.ErrProtocol) {
				t.Error(err)
			}
		})
	})
	// What comes over the credits is refused, and comes again.
	t.Run("overrun", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c := newCell()
			var (
				many []*scribev1.StreamEntry
				all  []string
			)
			for i := range 5000 {
				all = append(all, fmt.Sprint(i))
				lsn := c.add(shardID(0, 1), fmt.Sprint(i))
				e := c.logs[shardID(0, 1)].entries[lsn-1]
				many = append(many, &scribev1.StreamEntry{Shard: shard, Lsn: uint64(lsn), Time: e.time, Pointer: e.pointer})
			}
			c.onStream = func(_ int, o *scribev1.StreamResponse) ([]*scribev1.StreamResponse, error) {
				if o.GetOpened() == nil {
					return nil, nil
				}
				return []*scribev1.StreamResponse{o, entries(many...)}, nil
			}
			got, err := read(t.Context(), open(t, c), 5000)
			want(t, got, err, all...)
			if c.streams < 3 {
				t.Errorf("%d streams", c.streams)
			}
			c.wrong = nil // what was sent in excess came back as credits
		})
	})
}

func TestFetchesThatFail(t *testing.T) {
	dial := &net.OpError{Op: "dial", Err: errors.New("connection refused")}
	synctest.Test(t, func(t *testing.T) {
		c := newCell()
		var all []string
		for i := range 50 {
			all = append(all, fmt.Sprint(i))
			c.add(shardID(0, 1), fmt.Sprint(i))
		}
		c.onFetch = func(n int, _ *scribev1.FetchRequest, res *scribev1.FetchResponse) error {
			switch n % 7 {
			case 0:
				return nil
			case 1:
				return dial
			case 2: // cut: ask for the rest
				res.Payloads = res.Payloads[:1]
			case 3:
				res.Payloads = nil
			case 4:
				return refusal(scribev1.Reason_REASON_OVERLOADED, time.Second)
			case 5:
				res.Payloads[len(res.Payloads)/2] = &scribev1.Payload{Error: &scribev1.ErrorInfo{Reason: scribev1.Reason_REASON_NO_BACKEND}}
			case 6:
				res.Payloads = append(res.Payloads, res.Payloads...)
			}
			return nil
		}
		got, err := read(t.Context(), open(t, c, consumer.WithUntilEnd()), 0)
		want(t, got, err, all...)
	})
	synctest.Test(t, func(t *testing.T) {
		c := newCell()
		c.add(shardID(0, 1), "1")
		c.onFetch = func(int, *scribev1.FetchRequest, *scribev1.FetchResponse) error {
			return refusal(scribev1.Reason_REASON_INVALID, 0)
		}
		_, err := read(t.Context(), open(t, c), 0)
		why := new(consumer.ServerError)
		if !errors.Is(err, consumer.ErrRefused) || !errors.As(err, &why) || c.fetches != 1 {
			t.Errorf("after %d fetches: %v", c.fetches, err)
		}
		c.onFetch = func(_ int, _ *scribev1.FetchRequest, res *scribev1.FetchResponse) error {
			res.Payloads[0] = &scribev1.Payload{Error: &scribev1.ErrorInfo{Reason: scribev1.Reason_REASON_INVALID}}
			return nil
		}
		if _, err := read(t.Context(), open(t, c), 0); !errors.Is(err, consumer.ErrRefused) {
			t.Errorf("refused by itself: %v", err)
		}
	})
}

func TestRetryTimeout(t *testing.T) {
	for _, part := range []string{"stream", "fetch", "payload"} {
		t.Run(part, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCell()
				c.add(shardID(0, 1), "1")
				switch part {
				case "stream":
					c.onStream = func(int, *scribev1.StreamResponse) ([]*scribev1.StreamResponse, error) { return nil, errBroken }
				case "fetch":
					c.onFetch = func(int, *scribev1.FetchRequest, *scribev1.FetchResponse) error { return errBroken }
				case "payload":
					c.onFetch = func(_ int, _ *scribev1.FetchRequest, res *scribev1.FetchResponse) error {
						res.Payloads[0] = &scribev1.Payload{Error: &scribev1.ErrorInfo{Reason: scribev1.Reason_REASON_OVERLOADED}}
						return nil
					}
				}
				begun := time.Now()
				_, err := read(t.Context(), open(t, c, consumer.WithRetryTimeout(time.Minute)), 0)
				if d := time.Since(begun); !errors.Is(err, consumer.ErrUnavailable) || d < time.Minute || d > 70*time.Second {
					t.Errorf("after %v: %v", d, err)
				}
				if n := c.streams + c.fetches; n > 40 {
					t.Errorf("%d attempts in a minute", n)
				}
			})
		})
	}
}

// However much there is, a stream is never ahead of its reader by more than it may, and what is ahead is fetched together.
func TestPrefetchIsBoundedAndShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit = 256 << 10
		c := newCell()
		large := strings.Repeat("x", 20_000)
		for i := range 100 {
			c.add(shardID(0, 1), fmt.Sprint(i, large))
		}
		r := open(t, c, consumer.WithUntilEnd(), consumer.WithPrefetchBytes(limit))
		n := 0
		for _, err := range r.Records(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			n++
			synctest.Wait() // everything that may be fetched is
			if c.fetched > n+limit/20_000+2 {
				t.Fatalf("%d payloads were fetched when %d were delivered", c.fetched, n)
			}
		}
		if n != 100 || c.most > limit+21_000 {
			t.Errorf("%d records, up to %d bytes ahead", n, c.most)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		c := newCell()
		c.perMessage = 500
		for i := range 3000 {
			c.add(shardID(0, 1), fmt.Sprint(i))
		}
		got, err := read(t.Context(), open(t, c, consumer.WithUntilEnd()), 0)
		// How many pointers wait when a fetch begins is up to the scheduler: ten each is far below what it ever is.
		if err != nil || len(got) != 3000 || c.fetches > 300 {
			t.Errorf("%d messages with %d fetches: %v", len(got), c.fetches, err)
		}
	})
}

// TestTokenLapse: a consumer whose token somebody renews waits until a server takes the next one, when it opens its stream and when it fetches; with any other token it fails at once.
func TestTokenLapse(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("a.b.c\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	lapse := func() *cell {
		c := newCell()
		c.add(shardID(0, 1), "0")
		c.onStream = func(n int, m *scribev1.StreamResponse) ([]*scribev1.StreamResponse, error) {
			if n <= 2 {
				return nil, refusal(scribev1.Reason_REASON_UNAUTHENTICATED, 0)
			}
			return []*scribev1.StreamResponse{m}, nil
		}
		c.onFetch = func(n int, _ *scribev1.FetchRequest, _ *scribev1.FetchResponse) error {
			if n <= 2 {
				return refusal(scribev1.Reason_REASON_UNAUTHENTICATED, 0)
			}
			return nil
		}
		return c
	}
	synctest.Test(t, func(t *testing.T) {
		r := open(t, lapse(), consumer.WithUntilEnd(), consumer.WithTokenFile(file))
		fork, err := r.Fork(consumer.WithUntilEnd(), consumer.WithStart(consumer.Earliest()))
		if err != nil {
			t.Fatal(err)
		}
		defer fork.Close()
		got, err := read(t.Context(), fork, 0)
		want(t, got, err, "0")
		got, err = read(t.Context(), r, 0)
		want(t, got, err, "0")
	})
	for _, timeout := range []time.Duration{0, 10 * time.Second} {
		synctest.Test(t, func(t *testing.T) { // nobody renews it
			c := newCell()
			c.add(shardID(0, 1), "0")
			c.onStream = func(int, *scribev1.StreamResponse) ([]*scribev1.StreamResponse, error) {
				return nil, refusal(scribev1.Reason_REASON_UNAUTHENTICATED, 0)
			}
			begun := time.Now()
			_, err := read(t.Context(), open(t, c, consumer.WithUntilEnd(), consumer.WithTokenFile(file), consumer.WithRetryTimeout(timeout)), 0)
			limit := cmp.Or(timeout, 2*time.Minute)
			if d := time.Since(begun); !errors.Is(err, consumer.ErrRefused) && timeout == 0 || err == nil || d < limit/2 || d > 2*limit {
				t.Errorf("with a retry timeout of %v: %v after %v", timeout, err, d)
			}
		})
	}
	for what, change := range map[string]func(*cell){"the stream": func(c *cell) { c.onFetch = nil }, "a fetch": func(c *cell) { c.onStream = nil }} {
		synctest.Test(t, func(t *testing.T) {
			c := lapse()
			change(c)
			if _, err := read(t.Context(), open(t, c, consumer.WithUntilEnd(), consumer.WithToken("a.b.c")), 0); !errors.Is(err, consumer.ErrRefused) {
				t.Errorf("%s without a file: %v", what, err)
			}
		})
	}
}

// TestOldTickets: a reader whose pointers lay until their tickets were too old gets new ones, and every message once. What is refused again is an error.
func TestOldTickets(t *testing.T) {
	for name, tt := range map[string]struct {
		refusals int
		want     []string
	}{
		"once":  {1, []string{"0", "1", "2", "3", "4"}},
		"twice": {2, []string{"0", "1", "2"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCell()
				c.perMessage = 1
				for i := range 5 {
					c.add(shardID(0, 1), fmt.Sprint(i)+strings.Repeat("x", 60<<10))
				}
				fourth, refused := string(c.logs[shardID(0, 1)].entries[3].pointer), 0
				c.onFetch = func(_ int, req *scribev1.FetchRequest, _ *scribev1.FetchResponse) error {
					for _, p := range req.GetPointers() {
						if string(p) == fourth && refused < tt.refusals {
							refused++
							return rpc.Errorf(scribev1.Reason_REASON_TICKET_EXPIRED, "the ticket of the pointer is too old")
						}
					}
					return nil
				}
				// Each payload is fetched by itself, so that only the fourth is refused.
				got, err := read(t.Context(), open(t, c, consumer.WithUntilEnd(), consumer.WithPrefetchBytes(64<<10)), 0)
				for i, text := range got {
					got[i] = strings.TrimRight(text, "x")
				}
				if tt.refusals > 1 {
					if rpc.ReasonOf(err) != scribev1.Reason_REASON_TICKET_EXPIRED {
						t.Errorf("error is %v", err)
					}
					err = nil
				}
				want(t, got, err, tt.want...)
			})
		})
	}
}
