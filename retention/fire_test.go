package retention

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"scribe/internal/format/pointer"
	"scribe/internal/format/record"
	"scribe/storage/blob"
	"scribe/storage/blob/memory"
	"scribe/storage/metalog"
	"scribe/storage/metalog/pebblelog"
)

// speed is how much faster than real time a cell under fire lives.
const speed = 300

// fast is a clock that runs faster than the real one, from now on.
type fast struct{ began time.Time }

func (f fast) micros() int64  { return f.now().UnixMicro() }
func (f fast) now() time.Time { return f.began.Add(speed * time.Since(f.began)) }

// after is a channel that fires when the clock has moved by d.
func (f fast) after(d time.Duration) <-chan time.Time { return time.After(d / speed) }

// soldier lets a goroutine use a world: a failure ends the goroutine.
type soldier struct{ *testing.T }

// Fatalf fails the test and ends the goroutine.
func (s soldier) Fatalf(format string, args ...any) {
	s.Helper()
	s.Errorf(format, args...)
	runtime.Goexit()
}

// battle is a cell with everything in it at the same time.
type battle struct {
	t     *testing.T
	ctx   context.Context
	clock fast
	log   *pebblelog.Engine
	blobs *memory.Store
	cell  *cell
	cfg   Config
	stop  chan struct{}

	mu struct {
		sync.Mutex
		// written is all that was committed, in order.
		written             []committed
		gaps, stale, killed int
	}
}

type committed struct {
	shard record.ShardID
	lsn   record.LSN
	time  int64
	key   string
}

// TestUnderFire: writers that write, stop in the middle and go on after the keeper was there; readers of every age; keepers that are
// killed at any moment and replaced. Whatever is owed can be read, whatever a reader has in its hands either resolves or was trimmed, writers
// that come too late are refused, and in the end nothing is left that nobody needs.
func TestUnderFire(t *testing.T) {
	clock := fast{time.Now()}
	log, err := pebblelog.Open("log", pebblelog.Options{FS: vfs.NewMem(), Clock: clock.micros, ClockLease: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	b := &battle{t: t, ctx: t.Context(), clock: clock, log: log, blobs: memory.New(), cell: newCell(), cfg: DefaultConfig(), stop: make(chan struct{})}
	b.cfg.Grace, b.cfg.Linger, b.cfg.SweepInterval, b.cfg.BoundaryStep = 2*time.Minute, 2*time.Minute, 20*time.Minute, 10*time.Second
	b.cfg.Interval, b.cfg.LeaseTTL, b.cfg.PinLimit = 10*time.Millisecond, 200*time.Millisecond, 0
	b.cfg.StoreRequests, b.cfg.LogRequests, b.cfg.DeleteBytes = 1e9, 1e9, 0
	for _, retention := range []time.Duration{3 * time.Minute, 10 * time.Minute} {
		b.cell.create(retention, clock.micros())
	}
	var soldiers, keepers sync.WaitGroup
	for i := range 3 {
		soldiers.Go(func() { b.write(uint16(i + 1)) })
		soldiers.Go(b.read)
	}
	for i := range 2 {
		soldiers.Go(func() { b.stall(uint16(100 + i)) })
		keepers.Go(func() { b.collect(i) })
	}
	<-clock.after(30 * time.Minute)
	for deadline := time.Now().Add(time.Minute); !b.happened() && time.Now().Before(deadline); {
		<-clock.after(time.Minute)
	}
	close(b.stop)
	soldiers.Wait()
	keepers.Wait()
	b.after()
	if !b.happened() {
		t.Error("something did not happen")
	}
	t.Logf("%d writes, %d gaps, %d late writers refused, %d keepers killed", len(b.mu.written), b.mu.gaps, b.mu.stale, b.mu.killed)
	if err := errors.Join(log.Close(), b.blobs.Close()); err != nil {
		t.Error(err)
	}
}

// world is the cell in the hands of one goroutine.
func (b *battle) world(writer uint16) *world {
	w := &world{
		tester: soldier{b.t}, ctx: b.ctx, made: b.clock.micros, log: b.log, blobs: b.blobs, cell: b.cell,
		epochs: map[record.ShardID]uint64{}, next: map[record.ShardID]record.LSN{}, cfg: b.cfg, ids: uint64(writer) << 20,
	}
	return w
}

// happened reports whether what this is about did.
func (b *battle) happened() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.mu.written) > 0 && b.mu.stale > 0 && b.mu.killed > 0
}

func (b *battle) over() bool {
	select {
	case <-b.stop:
		return true
	default:
		return false
	}
}

// write writes, and leaves an orphan now and then.
func (b *battle) write(writer uint16) {
	w := b.world(writer)
	for !b.over() {
		cats := b.cell.live()
		if rand.IntN(2) == 0 {
			cats = cats[:1]
		}
		d := w.put(writer, 1, cats...)
		if rand.IntN(8) != 0 {
			done, err := b.log.Append(b.ctx, d.append)
			age := time.Duration(b.clock.micros()-d.id.Time()) * time.Microsecond
			if errors.Is(err, metalog.ErrStaleBlob) && age >= b.cfg.Grace {
				continue // it was kept from running for too long
			}
			if err != nil {
				w.Fatalf("append of a blob made %v before: %v", age, err)
			}
			b.mu.Lock()
			for i, s := range d.append.Shards {
				w.next[s.Shard]++
				b.mu.written = append(b.mu.written, committed{s.Shard, done[i].FirstLSN, done[i].Time, d.key})
			}
			b.mu.Unlock()
		}
		<-b.clock.after(time.Duration(rand.IntN(3000)) * time.Millisecond)
	}
}

// stall puts, waits until the blob is gone, and goes on.
func (b *battle) stall(writer uint16) {
	w := b.world(writer)
	for !b.over() {
		d := w.put(writer, 1, b.cell.live()[0])
		for {
			if _, err := b.blobs.Stat(b.ctx, d.key); errors.Is(err, blob.ErrNotFound) {
				break
			}
			if b.over() {
				return
			}
			<-b.clock.after(10 * time.Second)
		}
		if err := w.commit(d); !errors.Is(err, metalog.ErrStaleBlob) {
			w.Fatalf("a blob that was deleted was committed: %v", err)
		}
		b.mu.Lock()
		b.mu.stale++
		b.mu.Unlock()
	}
}

// read reads messages of any age, and looks at some of them a while later.
func (b *battle) read() {
	w := b.world(0)
	for !b.over() {
		b.mu.Lock()
		n := len(b.mu.written)
		var c committed
		if n > 0 {
			c = b.mu.written[rand.IntN(n)]
		}
		b.mu.Unlock()
		if n == 0 {
			runtime.Gosched()
			continue
		}
		before := b.clock.micros()
		entries, err := b.log.Read(b.ctx, c.shard, c.lsn, 1, 0)
		now := b.clock.micros()
		if err != nil || len(entries) == 0 {
			if !errors.Is(err, metalog.ErrTrimmed) || c.time > now-b.cell.retention(c.shard.Category()).Microseconds() {
				w.Fatalf("shard %v, LSN %d, of %v ago: %d entries, %v", c.shard, c.lsn, time.Duration(now-c.time)*time.Microsecond, len(entries), err)
			}
			b.mu.Lock()
			b.mu.gaps++
			b.mu.Unlock()
			continue
		}
		p, err := pointer.Decode(entries[0].Data)
		if err != nil || p.Key() != c.key {
			w.Fatalf("shard %v, LSN %d: %v, %v", c.shard, c.lsn, p.Key(), err)
		}
		// What a reader has in its hands stays for a while, also if it is trimmed now.
		<-b.clock.after(time.Duration(rand.IntN(60)) * time.Second)
		_, err = b.blobs.Stat(b.ctx, c.key)
		if had := time.Duration(b.clock.micros()-before) * time.Microsecond; err != nil && had < b.cfg.Linger-time.Second {
			w.Fatalf("%s, read %v before: %v", c.key, had, err)
		}
	}
}

// collect runs keepers one after another, each of which is killed at a random moment.
func (b *battle) collect(place int) {
	for n := 0; !b.over(); n++ {
		d := Deps{Log: b.log, Blobs: b.blobs, Control: b.cell, Categories: b.cell, Owner: fmt.Sprintf("%d-%d", place, n), Now: b.clock.now}
		d, f := kill(d, 1<<40, rand.IntN(2) == 0)
		c, err := New(b.cfg, d)
		if err != nil {
			b.t.Error(err)
			return
		}
		select {
		case <-time.After(time.Duration(200+rand.IntN(1000)) * time.Millisecond):
		case <-b.stop:
		}
		f.left.Store(int64(rand.IntN(20)))
		if err := b.close(c); err == nil || errors.Is(err, errKilled) {
			b.mu.Lock()
			b.mu.killed++
			b.mu.Unlock()
		} else {
			b.t.Error(err)
		}
	}
}

// close closes a keeper. One that cannot give its lease back while that lasts, which is not long here, leaves it.
func (b *battle) close(c *Keeper) error {
	err := c.Close(context.WithoutCancel(b.ctx))
	if errors.Is(err, context.DeadlineExceeded) {
		return nil
	}
	return err
}

// after lets everything expire.
func (b *battle) after() {
	w := b.world(0)
	w.tester = b.t
	cfg := b.cfg
	cfg.LeaseTTL = 5 * time.Second // it is not to lose its lease for want of CPU
	c, err := New(cfg, Deps{Log: b.log, Blobs: b.blobs, Control: b.cell, Categories: b.cell, Owner: "last", Now: b.clock.now})
	if err != nil {
		b.t.Fatal(err)
	}
	deadline := time.After(time.Minute)
	for len(w.keys()) > 0 {
		w.resolves()
		select {
		case <-b.clock.after(time.Minute):
		case <-deadline:
			for key := range w.keys() {
				b.t.Errorf("left: %s", key)
			}
			deadline = nil
			b.t.FailNow()
		}
	}
	if err := b.close(c); err != nil {
		b.t.Error(err)
	}
}
