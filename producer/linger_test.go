package producer_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"scribe/internal/format/record"
	"scribe/internal/testkit/testsize"
	"scribe/producer"
	scribev1 "scribe/proto/scribe/v1"
)

// arrivals are the times at which a server got frames, by category.
type arrivals struct {
	mu     sync.Mutex
	frames int
	times  map[string][]time.Time
}

// noteFrames is a server's fault that is none.
func (a *arrivals) noteFrames(_ int, req *scribev1.WriteRequest) *fault {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.times == nil {
		a.times = map[string][]time.Time{}
	}
	for h, err := range record.Split(req.GetFrames()) {
		if err != nil {
			continue
		}
		a.frames++
		a.times[string(h.Category)] = append(a.times[string(h.Category)], time.Now())
	}
	return nil
}

// of returns the arrivals of a category.
func (a *arrivals) of(category string) []time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.times[category])
}

func (a *arrivals) count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.frames
}

// writeRounds writes a message to each category every pause.
func writeRounds(p *producer.Producer, names []string, rounds int, pause time.Duration) {
	for range rounds {
		for _, name := range names {
			p.WriteAsync(name, &producer.Message{Payload: []byte("something")})
		}
		<-time.After(pause)
	}
}

// TestLingerGrows: who writes to many categories sends some 2,000 frames a second, not one for each message, unless that is turned off or
// another level is asked for. With few categories nothing changes.
func TestLingerGrows(t *testing.T) {
	cases := []struct {
		name        string
		categories  int
		opts        []producer.Option
		least, most int // frames a second
		linger      time.Duration
	}{
		{"many", 2500, nil, 1000, 2000, 1500 * time.Millisecond},
		{"turned off", 2500, []producer.Option{producer.WithMaxLinger(0)}, 12_000, 12_500, producer.DefaultLinger},
		{"bounded", 2500, []producer.Option{producer.WithMaxLinger(500 * time.Millisecond)}, 4900, 5100, 500 * time.Millisecond},
		{"spooled", 2500, []producer.Option{producer.WithAck(producer.AckSpooled)}, 12_000, 12_500, producer.DefaultLinger},
		{"few", 10, nil, 48, 50, producer.DefaultLinger},
	}
	for _, c := range cases[:testsize.Test(len(cases), len(cases), 1)] {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var a arrivals
				p := start(t, &server{fault: a.noteFrames}, c.opts...)
				names := texts("category-", c.categories)
				writeRounds(p, names, 20, 200*time.Millisecond) // the number of categories is known by then
				before := a.count()
				writeRounds(p, names, 30, 200*time.Millisecond)
				if rate := (a.count() - before) / 6; rate < c.least || rate > c.most {
					t.Errorf("%d frames a second, want %d to %d", rate, c.least, c.most)
				}
				if got := p.Stats().Linger; got != c.linger {
					t.Errorf("messages linger for %v, want %v", got, c.linger)
				}
			})
		})
	}
}

// TestLingersEndTogether: frames of several programs for one category arrive at the same time, so that they share a pointer, also if one
// writes to twice as many categories. Categories have times of their own, of which there are few, so that what leaves goes in few requests.
func TestLingersEndTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var a arrivals
		first, second := start(t, &server{fault: a.noteFrames}), start(t, &server{fault: a.noteFrames})
		names := texts("category-", 2400)
		var group sync.WaitGroup
		group.Go(func() { writeRounds(first, names[:1200], 60, 140*time.Millisecond) })
		group.Go(func() {
			<-time.After(33 * time.Millisecond)
			writeRounds(second, names, 55, 150*time.Millisecond)
		})
		group.Wait()
		settled := time.Now().Add(-4 * time.Second)
		moments := map[time.Time]bool{}
		together := 0
		for _, name := range names[:1200] {
			times := a.of(name)
			for i, at := range times {
				if at.Before(settled) {
					continue
				}
				moments[at.Truncate(time.Millisecond)] = true
				if i > 0 && at.Sub(times[i-1]) <= time.Millisecond {
					together++
				}
			}
		}
		// The second producer lingers for 1.5 s, so it has sent two frames of each category at least, and the first for 0.75 s.
		if together < 2400 || len(moments) < 30 || len(moments) > 100 {
			t.Errorf("%d frames arrived together with another one, want 2400; at %d moments", together, len(moments))
		}
	})
}

// TestDepartures: where frames linger for long, full ones leave with those that are due, in few requests. What somebody waits for leaves at
// once, with what is before it in its category, and another program, which does not linger, as well.
func TestDepartures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const apart = producer.DefaultMaxLinger / 32
		var a, quick arrivals
		src := lingering(producer.DefaultMaxLinger)
		src.set(&scribev1.Category{Name: "awaited", Id: 2, Shards: 1, ShardBy: explicit, Linger: durationpb.New(producer.DefaultMaxLinger)}, nil)
		s := &server{fault: a.noteFrames, ordered: true}
		p := newPlacing(t, s, src)
		if err := p.Prepare(t.Context(), "c", "awaited"); err != nil {
			t.Fatal(err)
		}
		for range 200 {
			for range 20 {
				p.WriteAsync("c", &producer.Message{Payload: make([]byte, 1000)})
			}
			<-time.After(10 * time.Millisecond)
		}
		<-time.After(5 * time.Second)
		moments := map[time.Time]bool{}
		for _, at := range a.of("c") {
			moments[at] = true
			if late := time.Duration(at.UnixNano() % int64(apart)); late > 5*time.Millisecond {
				t.Errorf("a frame arrived %v after a departure", late)
			}
		}
		if frames := len(a.of("c")); frames < 60 || len(moments) > 24 {
			t.Errorf("%d frames arrived at %d moments", frames, len(moments))
		}
		<-time.After(time.Until(time.Now().Truncate(apart).Add(3 * apart / 2)))
		p.WriteAsync("awaited", &producer.Message{Payload: []byte("before")})
		begin := time.Now()
		if err := p.Write(t.Context(), "awaited", producer.Message{Payload: []byte("x")}); err != nil || time.Since(begin) > time.Millisecond {
			t.Errorf("an awaited message took %v: %v", time.Since(begin), err)
		}
		other := start(t, &server{fault: quick.noteFrames})
		other.WriteAsync("d", &producer.Message{Payload: []byte("x")})
		<-time.After(producer.DefaultLinger + time.Millisecond)
		if quick.count() != 1 {
			t.Error("a program without long lingers waits for a departure")
		}
	})
}

// TestLingeredRequests: requests say whether somebody waits for their frames, and have either kind.
func TestLingeredRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var (
			mu       sync.Mutex
			lingered = map[string]bool{}
		)
		src := lingering(time.Minute)
		for i, name := range []string{"waited", "written"} {
			src.set(&scribev1.Category{Name: name, Id: uint32(i + 2), Shards: 1, ShardBy: explicit, Linger: durationpb.New(time.Minute)}, nil)
		}
		s := &server{fault: func(_ int, req *scribev1.WriteRequest) *fault {
			mu.Lock()
			defer mu.Unlock()
			for h, err := range record.Split(req.GetFrames()) {
				if err == nil {
					lingered[string(h.Category)] = req.GetLingered()
				}
			}
			return nil
		}}
		p := newPlacing(t, s, src)
		if err := p.Prepare(t.Context(), "c", "waited", "written", "d"); err != nil {
			t.Fatal(err)
		}
		message := &producer.Message{Payload: []byte("x")}
		p.WriteAsync("c", message)
		p.WriteAsync("d", message) // which does not linger
		if err := p.WriteAsync("waited", message).Wait(t.Context()); err != nil {
			t.Error(err)
		}
		if err := p.Write(t.Context(), "written", *message); err != nil {
			t.Error(err)
		}
		if err := p.Flush(t.Context()); err != nil {
			t.Error(err)
		}
		if want := map[string]bool{"c": true, "d": false, "waited": false, "written": false}; !maps.Equal(lingered, want) {
			t.Errorf("lingered is %v, want %v", lingered, want)
		}
	})
}

// lingering is a source of one category with a linger.
func lingering(linger time.Duration) *source {
	src := &source{}
	src.set(&scribev1.Category{Name: "c", Id: 1, Shards: 1, ShardBy: explicit, Linger: durationpb.New(linger)}, nil)
	return src
}

// TestCategoryLinger: messages of a category linger as long as the category says, until somebody waits for them.
func TestCategoryLinger(t *testing.T) {
	const linger = 20 * time.Second
	for _, c := range []struct {
		name        string
		linger      time.Duration
		opts        []producer.Option
		wait        func(p *producer.Producer, r *producer.Result) error
		least, most time.Duration
	}{
		{"nobody waits", linger, nil, func(*producer.Producer, *producer.Result) error { return nil }, time.Second, linger},
		{"none", 0, nil, func(*producer.Producer, *producer.Result) error { return nil }, 0, producer.DefaultLinger},
		{"Wait", linger, nil, func(_ *producer.Producer, r *producer.Result) error { return r.Wait(context.Background()) }, 0, producer.DefaultLinger},
		{"Done", linger, nil, func(_ *producer.Producer, r *producer.Result) error { r.Done(); return nil }, 0, producer.DefaultLinger},
		{"Flush", linger, nil, func(p *producer.Producer, _ *producer.Result) error { return p.Flush(context.Background()) }, 0, 0},
		{"Write", linger, nil, func(p *producer.Producer, _ *producer.Result) error {
			return p.Write(context.Background(), "c", producer.Message{Payload: []byte("urgent")})
		}, 0, 0},
		{
			"a short delivery timeout", 5 * time.Minute,
			[]producer.Option{producer.WithDeliveryTimeout(8 * time.Second)},
			func(*producer.Producer, *producer.Result) error { return nil }, 0, 4 * time.Second,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var a arrivals
				p := newPlacing(t, &server{fault: a.noteFrames}, lingering(c.linger), c.opts...)
				if err := p.Prepare(t.Context(), "c"); err != nil {
					t.Fatal(err)
				}
				<-time.After(time.Until(time.Now().Truncate(linger).Add(linger))) // so that the time that is left is the same in each run
				begin := time.Now()
				r := p.WriteAsync("c", &producer.Message{Payload: []byte("patient")})
				if err := c.wait(p, r); err != nil {
					t.Error(err)
				}
				<-time.After(2 * linger)
				if got := a.of("c"); len(got) != 1 || got[0].Sub(begin) < c.least || got[0].Sub(begin) > c.most+time.Millisecond {
					t.Errorf("frames arrived at %v, want one after %v to %v from %v", got, c.least, c.most, begin)
				}
			})
		})
	}
}

// TestWaitLate: a message that has lingered longer than WithLinger says is sent at once when somebody begins to wait.
func TestWaitLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlacing(t, &server{}, lingering(time.Minute))
		if err := p.Prepare(t.Context(), "c"); err != nil {
			t.Fatal(err)
		}
		<-time.After(time.Until(time.Now().Truncate(time.Minute).Add(time.Minute)))
		r := p.WriteAsync("c", &producer.Message{Payload: []byte("patient")})
		<-time.After(100 * time.Millisecond)
		begin := time.Now()
		if err := r.Wait(t.Context()); err != nil || time.Since(begin) > 2*time.Millisecond {
			t.Errorf("waited for %v: %v", time.Since(begin), err)
		}
	})
}

// TestLargestFramesLeave: where memory is short, frames with many bytes are sent, and those with few linger on. A large message gets the
// memory that it needs.
func TestLargestFramesLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var a arrivals
		src := &source{}
		names, warm := texts("cold-", 500), texts("warm-", 12)
		all := slices.Concat(names, warm)
		for i, name := range all {
			src.set(&scribev1.Category{Name: name, Id: uint32(i + 1), Shards: 1, ShardBy: explicit, Linger: durationpb.New(time.Minute)}, nil)
		}
		p := newPlacing(t, &server{fault: a.noteFrames}, src, producer.WithMaxBufferedBytes(2<<20))
		if err := p.Prepare(t.Context(), all...); err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		for _, name := range names {
			p.WriteAsyncContext(t.Context(), name, &producer.Message{Payload: make([]byte, 100)})
		}
		for i := range 20_000 {
			p.WriteAsyncContext(t.Context(), warm[i%len(warm)], &producer.Message{Payload: make([]byte, 500)})
		}
		synctest.Wait()
		cold := 0
		for _, name := range names {
			cold += len(a.of(name))
		}
		if took := time.Since(begin); took > time.Second || a.count() < 40 || cold > 50 {
			t.Errorf("10 MB took %v in %d frames, of which %d had few bytes", took, a.count(), cold)
		}
		if err := p.Write(t.Context(), "warm-0", producer.Message{Payload: make([]byte, 1400<<10)}); err != nil || time.Since(begin) > time.Second {
			t.Errorf("a large message took %v: %v", time.Since(begin), err)
		}
	})
}

// TestOlderSource: of an older server, which lists other categories than those that it is asked about, a producer learns nothing. Its
// messages go where callers say.
func TestOlderSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var a arrivals
		src := lingering(time.Minute)
		src.set(keyed(byKey, "", 8), nil)
		src.older = true
		s := &server{fault: a.noteFrames}
		p := newPlacing(t, s, src)
		if err := p.Prepare(t.Context(), "c"); err != nil {
			t.Fatal(err)
		}
		p.WriteAsync("c", &producer.Message{Key: []byte("k"), Payload: []byte("x"), Shard: 3})
		<-time.After(time.Second)
		if got := s.payloads("c", 3); len(got) != 1 || src.asked != 1 {
			t.Errorf("shard 3 has %q, asked %d times", got, src.asked)
		}
	})
}

// TestQuestionsAreJoined: a producer asks about many categories at a time, so that it knows of all of them soon.
func TestQuestionsAreJoined(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := &source{}
		names := texts("category-", 5000)
		for i, name := range names {
			src.set(&scribev1.Category{Name: name, Id: uint32(i + 1), Shards: 1, ShardBy: explicit, Linger: durationpb.New(time.Minute)}, nil)
		}
		p := newPlacing(t, &server{}, src)
		writeRounds(p, names, 1, 5*time.Second)
		if src.asked > 60 {
			t.Errorf("asked %d times", src.asked)
		}
		before := p.Stats().Acked
		writeRounds(p, names, 1, 2*time.Second)
		if got := p.Stats().Acked - before; got > 600 {
			t.Errorf("%d messages did not linger", got)
		}
	})
}

// TestLingeringFramesGrow: a frame that lingers takes more memory as more messages come, and is not sent before its time.
func TestLingeringFramesGrow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var a arrivals
		s := &server{fault: a.noteFrames}
		p := newPlacing(t, s, lingering(time.Minute))
		if err := p.Prepare(t.Context(), "c"); err != nil {
			t.Fatal(err)
		}
		<-time.After(time.Until(time.Now().Truncate(time.Minute).Add(time.Minute)))
		for i := range 300 {
			p.WriteAsync("c", &producer.Message{Payload: fmt.Appendf(nil, "%0150d", i)})
		}
		if used := p.Stats().Memory; used < 300*150 || used > 80<<10 {
			t.Errorf("300 messages take %d bytes of memory", used)
		}
		<-time.After(2 * time.Minute)
		if got := s.payloads("c", 0); len(got) != 300 || !slices.IsSorted(got) || a.count() != 1 {
			t.Errorf("%d messages arrived in %d frames", len(got), a.count())
		}
		for i := range 1000 {
			p.WriteAsync("c", &producer.Message{Payload: fmt.Appendf(nil, "%0200d", i)})
		}
		<-time.After(time.Second)
		if got := a.count() - 1; got != 3 { // three full ones of 64 KiB, and one that lingers
			t.Errorf("%d frames of 200 KB arrived", got)
		}
	})
}
