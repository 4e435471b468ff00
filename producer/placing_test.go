package producer_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"scribe/internal/format/placement"
	"scribe/internal/transport/layouts"
	"scribe/producer"
	scribev1 "scribe/proto/scribe/v1"
)

// source says what the categories are.
type source struct {
	mu         sync.Mutex
	categories map[string]*scribev1.Category
	err        error
	asked      int
	// older: it does not know ListCategoriesRequest.names, and lists what there is.
	older bool
}

func (s *source) ListCategories(_ context.Context, req *scribev1.ListCategoriesRequest) (*scribev1.ListCategoriesResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
	if s.err != nil {
		return nil, s.err
	}
	if s.older {
		return &scribev1.ListCategoriesResponse{Categories: slices.Collect(maps.Values(s.categories))}, nil
	}
	res := &scribev1.ListCategoriesResponse{Named: true}
	for _, name := range req.GetNames() {
		if c, ok := s.categories[name]; ok {
			res.Categories = append(res.Categories, c)
		}
	}
	return res, nil
}

func (s *source) set(c *scribev1.Category, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
	if s.categories == nil {
		s.categories = map[string]*scribev1.Category{}
	}
	if c != nil {
		s.categories[c.GetName()] = c
	}
}

// keyed is a category that places messages.
func keyed(by scribev1.ShardBy, field string, shards uint32) *scribev1.Category {
	return &scribev1.Category{Name: "c", Id: 1, Shards: shards, ShardBy: by, ShardField: field}
}

const (
	byKey    = scribev1.ShardBy_SHARD_BY_KEY
	byField  = scribev1.ShardBy_SHARD_BY_FIELD
	sticky   = scribev1.ShardBy_SHARD_BY_STICKY
	explicit = scribev1.ShardBy_SHARD_BY_EXPLICIT
)

// newPlacing returns a producer that places messages as src says.
func newPlacing(t testing.TB, s *server, src *source, opts ...producer.Option) *producer.Producer {
	t.Helper()
	p, err := producer.New("", append([]producer.Option{producer.WithService(s), producer.WithCategories(src)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(context.Background()); err != nil {
			t.Error(err)
		}
		s.check(t)
	})
	return p
}

// wantPlaced checks that messages are in the shards of the category's layout, in frames that say so, and returns how many shards
// have any.
func (s *server) wantPlaced(t *testing.T, c *scribev1.Category) (used int) {
	t.Helper()
	l := layouts.Current(c)
	s.mu.Lock()
	defer s.mu.Unlock()
	for st, messages := range s.logs {
		if len(messages) > 0 {
			used++
		}
		for _, m := range messages {
			var key []byte
			if m.hasKey {
				key = []byte(m.key)
			}
			if shard, ok := l.Place(key, []byte(m.payload), new(placement.Scratch)); ok && shard != st.shard {
				t.Errorf("%q with the key %q is in shard %d, want %d", m.payload, m.key, st.shard, shard)
			}
		}
	}
	for _, f := range s.frames {
		if f.Placement != l.Tag() {
			t.Errorf("a frame has the tag %#x, want %#x", f.Placement, l.Tag())
		}
	}
	return used
}

// TestPlaceEachWay: each call puts a message where its key or field says.
func TestPlaceEachWay(t *testing.T) {
	message := func(i int) *producer.Message {
		id := fmt.Sprintf("user-%d", i%40)
		return &producer.Message{Key: []byte(id), Payload: []byte(`{"user":{"id":"` + id + `"}}`)}
	}
	for _, c := range []*scribev1.Category{keyed(byKey, "", 8), keyed(byField, "user.id", 8)} {
		for name, write := range map[string]func(p *producer.Producer, i int) error{
			"Write": func(p *producer.Producer, i int) error {
				return p.Write(context.Background(), "c", *message(i), *message(i + 1))
			},
			"WriteAsync": func(p *producer.Producer, i int) error { p.WriteAsync("c", message(i)); return nil },
			"WriteContext": func(p *producer.Producer, i int) error {
				p.WriteAsyncContext(context.Background(), "c", message(i))
				return nil
			},
			"LogMessage": func(p *producer.Producer, i int) error { p.LogMessage("c", message(i)); return nil },
			"WriteAtomic": func(p *producer.Producer, i int) error {
				return p.WriteAtomic(context.Background(), "c", 0, *message(i), *message(i))
			},
			"Log": func(p *producer.Producer, i int) error {
				if c.GetShardBy() == byField { // it takes no key
					p.Log("c", message(i).Payload)
					return nil
				}
				return p.Write(context.Background(), "c", *message(i))
			},
		} {
			t.Run(scribev1.EnumName(c.GetShardBy())+"/"+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s, src := &server{}, &source{}
					src.set(c, nil)
					p := newPlacing(t, s, src)
					if err := p.Prepare(t.Context(), "c"); err != nil {
						t.Fatal(err)
					}
					for i := range 200 {
						if err := write(p, i); err != nil {
							t.Fatal(err)
						}
					}
					if err := p.Flush(t.Context()); err != nil {
						t.Fatal(err)
					}
					if used := s.wantPlaced(t, c); used != 8 {
						t.Errorf("%d shards have messages", used)
					}
				})
			})
		}
	}
}

// TestShardsThatCallersGive: a shard is refused where messages have theirs, and taken elsewhere.
func TestShardsThatCallersGive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, src := &server{}, &source{}
		p := newPlacing(t, s, src)
		for _, c := range []*scribev1.Category{keyed(byKey, "", 4), keyed(byField, "a", 4), keyed(sticky, "", 4), keyed(explicit, "", 4), keyed(0, "", 4)} {
			c.Name = "by-" + scribev1.EnumName(c.GetShardBy())
			src.set(c, nil)
			refused := layouts.Current(c) != nil
			for _, shard := range []uint32{3, producer.ShardZero} {
				for what, err := range map[string]error{
					"write":  p.Write(t.Context(), c.GetName(), producer.Message{Shard: shard}),
					"atomic": p.WriteAtomic(t.Context(), c.GetName(), shard, producer.Message{}),
					"arrow":  p.WriteArrow(t.Context(), c.GetName(), shard, 1, func() ([]byte, error) { return []byte("rows"), nil }),
				} {
					if errors.Is(err, producer.ErrInvalid) != refused || (err == nil) == refused {
						t.Errorf("%s: %s to shard %d: %v", c.GetName(), what, shard, err)
					}
				}
			}
			if got := len(s.payloads(c.GetName(), 0)); !refused && got != 3 {
				t.Errorf("%s: shard 0 has %d messages, want 3", c.GetName(), got)
			}
		}
		if err := p.WriteAtomic(t.Context(), "by-key", 0, producer.Message{Key: []byte("42")}, producer.Message{Key: []byte("user-17")}, producer.Message{}); !errors.Is(err, producer.ErrInvalid) {
			t.Errorf("an atomic batch for several shards: %v", err)
		}
	})
}

// TestSticky: messages without a value, and those of a sticky category, go to one shard for a batch and then to the next; in an
// exactly_once category all of a producer are in one.
func TestSticky(t *testing.T) {
	for _, c := range []*scribev1.Category{keyed(sticky, "", 4), keyed(byKey, "", 4), keyed(byField, "a", 4)} {
		for _, delivery := range []scribev1.Delivery{scribev1.Delivery_DELIVERY_AT_LEAST_ONCE, scribev1.Delivery_DELIVERY_EXACTLY_ONCE} {
			synctest.Test(t, func(t *testing.T) {
				s, src := &server{}, &source{}
				c.Delivery = delivery
				src.set(c, nil)
				p := newPlacing(t, s, src)
				for batch := range 8 {
					var msgs []producer.Message
					for i := range 100 {
						msgs = append(msgs, producer.Message{Payload: fmt.Appendf(nil, "%d.%d", batch, i)})
					}
					if err := p.Write(t.Context(), "c", msgs...); err != nil {
						t.Fatal(err)
					}
					<-time.After(time.Second)
				}
				_, frames := s.count()
				used := 0
				for shard := range uint32(4) {
					if n := len(s.payloads("c", shard)); n == 200 || n == 800 {
						used++
					}
				}
				want := 4
				if delivery == scribev1.Delivery_DELIVERY_EXACTLY_ONCE {
					want = 1
				}
				if used != want || frames != 8 {
					t.Errorf("%v: %d shards in %d frames, want %d in 8", c, used, frames, want)
				}
			})
		}
	}
}

func TestPartitioner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, src := &server{}, &source{}
		src.set(nil, errors.New("away"))
		p := newPlacing(t, s, src, producer.WithPartitioner(func(category string, shards uint32, m *producer.Message) uint32 {
			if category != "c" || shards != 4 {
				t.Errorf("it was asked about %d shards of %s", shards, category)
			}
			return uint32(m.Payload[0] - '0')
		}))
		write := func(payload string, shard uint32) error {
			return p.Write(t.Context(), "c", producer.Message{Payload: []byte(payload), Shard: shard})
		}
		if err := write("1", 0); !errors.Is(err, producer.ErrUnavailable) {
			t.Errorf("while the number of shards is not known: %v", err)
		}
		src.set(keyed(explicit, "", 4), nil)
		<-time.After(10 * time.Second)
		p.Log("c", []byte("2"))
		if err := errors.Join(write("1", 0), write("3", 2), p.Flush(t.Context())); err != nil {
			t.Fatal(err)
		}
		if err := write("7", 0); !errors.Is(err, producer.ErrInvalid) {
			t.Errorf("a shard that there is not: %v", err)
		}
		if got := fmt.Sprint(s.payloads("c", 1), s.payloads("c", 2)); got != "[1] [2 3]" && got != "[1] [3]" {
			t.Errorf("shards 1 and 2 have %s", got)
		}
	})
}

// TestUnansweredQuestions: while nobody says how messages are placed, nobody waits for long, and servers are left to place them.
func TestUnansweredQuestions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, src := &server{}, &source{}
		src.set(nil, errors.New("away"))
		p := newPlacing(t, s, src)
		start := time.Now()
		for i := range 20 {
			if err := p.Write(t.Context(), fmt.Sprint("c", i), producer.Message{Key: []byte("k")}); err != nil {
				t.Fatal(err)
			}
		}
		d := time.Since(start)
		synctest.Wait() // nobody asks any more
		if d > 2*time.Second || src.asked > 20 {
			t.Errorf("it took %v and %d questions", d, src.asked)
		}
		for _, f := range s.frames {
			if f.Placement != 0 || f.Shard != 0 {
				t.Errorf("a frame of shard %d has the tag %#x", f.Shard, f.Placement)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := p.Prepare(ctx, "c"); !errors.Is(err, producer.ErrUnavailable) {
			t.Errorf("Prepare: %v", err)
		}
	})
}

// TestOrderAcrossGrowth: while shards are added, messages of a key are stored in the order in which the producer accepted them,
// whatever requests fail or take long; in one shard and across shards.
func TestOrderAcrossGrowth(t *testing.T) {
	for seed := range uint64(20) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { orderAcrossGrowth(t, rand.New(rand.NewPCG(seed, 1))) })
		})
	}
}

func orderAcrossGrowth(t *testing.T, rng *rand.Rand) {
	const keys = 12
	var drawing sync.Mutex
	faults := rand.New(rand.NewPCG(rng.Uint64(), 2)) //nolint:gosec // reproducible on purpose
	s, src := &server{}, &source{}
	s.fault = func(int, *scribev1.WriteRequest) *fault {
		drawing.Lock()
		defer drawing.Unlock()
		f := &fault{}
		switch faults.IntN(4) {
		case 0:
			f.before = refusal(scribev1.Reason_REASON_OVERLOADED, 0)
		case 1, 2:
			late := make(chan struct{})
			time.AfterFunc(time.Duration(faults.IntN(3000))*time.Millisecond, func() { close(late) })
			f.wait = late
		}
		return f
	}
	history := []*scribev1.Category{keyed(byKey, "", 2), keyed(byKey, "", 3), keyed(byKey, "", 8)}
	p := newPlacing(t, s, src, producer.WithDeliveryTimeout(0), producer.WithMaxInFlight(8), producer.WithBatchBytes(4<<10))
	next := make([]int, keys)
	for step := range 3000 {
		switch step {
		case 100: // until then the category is not there: servers would place what is written
			src.set(history[0], nil)
		case 1000:
			src.set(history[1], nil)
		case 2000:
			src.set(history[2], nil)
		}
		k := rng.IntN(keys)
		m := &producer.Message{Key: fmt.Append(nil, "key-", k), Payload: fmt.Append(nil, next[k])}
		next[k]++
		p.WriteAsyncContext(t.Context(), "c", m)
		<-time.After(time.Duration(rng.IntN(100)) * time.Millisecond)
	}
	if err := p.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	type stored struct {
		number, frame int
		shard         uint32
	}
	byKeys := map[string][]stored{}
	for st, messages := range s.logs {
		for _, m := range messages {
			var n int
			if _, err := fmt.Sscan(m.payload, &n); err != nil {
				t.Fatal(err)
			}
			byKeys[m.key] = append(byKeys[m.key], stored{n, m.frame, st.shard})
		}
	}
	for k := range keys {
		key := fmt.Sprint("key-", k)
		got := byKeys[key]
		slices.SortStableFunc(got, func(a, b stored) int { return a.frame - b.frame })
		for i, m := range got {
			if m.number != i {
				t.Fatalf("message %d of %s was stored after %d others, in shard %d", m.number, key, i, m.shard)
			}
		}
		if len(got) != next[k] {
			t.Errorf("%d of %d messages of %s were stored", len(got), next[k], key)
		}
		if last := got[len(got)-1]; last.shard != layouts.Current(history[2]).ShardOf([]byte(key)) {
			t.Errorf("the last message of %s is in shard %d", key, last.shard)
		}
	}
}
