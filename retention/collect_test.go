package retention

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"scribe/internal/format/pointer"
	"scribe/internal/testkit/s3test"
	"scribe/storage/blob"
	"scribe/storage/blob/file"
	"scribe/storage/blob/memory"
	"scribe/storage/blob/s3"
	"scribe/storage/metalog"
)

// everyStore runs a test over every implementation of the blob store.
func everyStore(t *testing.T, test func(t *testing.T, w *world)) {
	t.Helper()
	for name, open := range map[string]func(*testing.T) blob.Store{
		"memory": func(*testing.T) blob.Store { return memory.New() },
		"file": func(t *testing.T) blob.Store {
			t.Helper()
			store, err := file.New(t.TempDir(), file.Options{})
			if err != nil {
				t.Fatal(err)
			}
			return store
		},
		"s3": func(t *testing.T) blob.Store {
			t.Helper()
			server := s3test.Start(t)
			cfg := s3.DefaultConfig()
			cfg.Endpoint, cfg.Secure, cfg.Bucket, cfg.Region = server.Endpoint, false, server.Bucket, server.Region
			cfg.AccessKey, cfg.SecretKey = server.AccessKey, server.SecretKey
			store, err := s3.New(cfg)
			if err != nil {
				t.Fatal(err)
			}
			return store
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t.Context(), t, open(t))
			defer w.close()
			test(t, w)
		})
	}
}

// TestLifeOfBlobs: what is owed stays, what expired goes, orphans go long before they would expire, and what comes too late is refused.
func TestLifeOfBlobs(t *testing.T) {
	everyStore(t, func(t *testing.T, w *world) {
		short, long := w.cell.create(time.Hour, w.clock.Now()), w.cell.create(4*time.Hour, w.clock.Now())
		l := w.mustLead("one")
		defer l.close()
		mixed := w.write(1, 4, short, long)
		only := w.write(1, 1, short)
		orphan := w.put(2, 4, long)
		stalled := w.put(3, 4, long)
		l.run(30*time.Minute, 10*time.Minute)
		if n := len(w.keys()); n != 4 {
			t.Fatalf("%d blobs after half an hour, want all 4", n)
		}
		l.run(90*time.Minute, 10*time.Minute)
		keys := w.keys()
		for d, want := range map[*draft]bool{mixed: true, only: false, orphan: false, stalled: false} {
			if _, there := keys[d.key]; there != want {
				t.Errorf("after two hours %s is there: %v, want %v", d.key, there, want)
			}
		}
		if err := w.commit(stalled); !errors.Is(err, metalog.ErrStaleBlob) {
			t.Errorf("a writer that was paused for two hours: %v", err)
		}
		w.resolves()
		l.run(4*time.Hour, 10*time.Minute)
		if keys := w.keys(); len(keys) != 0 {
			t.Errorf("left: %v", keys)
		}
		again := w.write(3, 4, long) // it goes on with a new blob
		l.run(time.Hour, 10*time.Minute)
		if _, there := w.keys()[again.key]; !there {
			t.Error("a new blob is gone")
		}
		claims, err := l.t.listClaims(w.ctx)
		if err != nil || len(claims) != 1 {
			t.Errorf("claims: %v, %v", claims, err)
		}
	})
}

// passing is a store in which an hour goes by while a blob is read.
type passing struct {
	blob.Store
	reads func()
}

func (p passing) ReadAt(ctx context.Context, key string, dst []byte, off int64) error {
	p.reads()
	return p.Store.ReadAt(ctx, key, dst, off)
}

// TestLingerBeginsWhenFound: a slice takes long to examine, and a reader has a pointer that was there a moment before.
func TestLingerBeginsWhenFound(t *testing.T) {
	w := testWorld(t)
	orphan := w.put(1, 4, w.cell.create(4*time.Hour, w.clock.Now()))
	var found int64
	deps := w.deps("one")
	deps.Blobs = passing{w.blobs, func() {
		if found == 0 {
			w.clock.Advance(time.Hour)
			found = w.clock.Now()
		}
	}}
	l, err := w.lead(deps)
	if err != nil {
		t.Fatal(err)
	}
	defer l.close()
	w.clock.Advance(2 * time.Hour)
	for range 100 {
		if err := l.pass(); err != nil {
			t.Fatal(err)
		}
		_, there := w.keys()[orphan.key]
		if age := time.Duration(w.clock.Now()-found) * time.Microsecond; found != 0 && there != (age < w.cfg.Linger) {
			t.Fatalf("%v after it was found dead it is there: %v", age, there)
		}
		w.clock.Advance(time.Minute)
	}
	if found == 0 || len(w.keys()) != 0 {
		t.Error("it was not found")
	}
}

// TestRetentionChanges: raised retention keeps what had not expired, lowered retention takes what has, bytes included.
func TestRetentionChanges(t *testing.T) {
	w := testWorld(t)
	raised, lowered := w.cell.create(2*time.Hour, w.clock.Now()), w.cell.create(72*time.Hour, w.clock.Now())
	l := w.mustLead("one")
	defer l.close()
	kept, cut := w.write(1, 2, raised), w.write(1, 72, lowered)
	l.run(100*time.Minute, 10*time.Minute)
	w.cell.retain(raised, 10*time.Hour)
	l.run(3*time.Hour, 10*time.Minute)
	w.resolves()
	if _, there := w.keys()[kept.key]; !there || len(w.referred()) != 2 {
		t.Error("a message was removed although its retention was raised before it expired")
	}
	w.cell.retain(lowered, time.Hour)
	l.run(40*time.Minute, 10*time.Minute)
	if _, there := w.keys()[cut.key]; there {
		t.Error("a blob is there long after the retention of all in it was lowered")
	}
	l.run(7*time.Hour, 10*time.Minute)
	if keys := w.keys(); len(keys) != 0 {
		t.Errorf("left: %v", keys)
	}
}

// TestDeletedCategory: nothing is left of one, in the logs and among the blobs, and a blob that it shares stays.
func TestDeletedCategory(t *testing.T) {
	w := testWorld(t)
	gone, other := w.cell.create(72*time.Hour, w.clock.Now()), w.cell.create(72*time.Hour, w.clock.Now())
	l := w.mustLead("one")
	defer l.close()
	shared, own := w.write(1, 72, gone, other), w.write(2, 72, gone)
	l.run(2*time.Hour, 10*time.Minute)
	w.cell.drop(gone)
	l.run(time.Hour, 10*time.Minute)
	keys := w.keys()
	if _, there := keys[own.key]; there {
		t.Error("its blob is there")
	}
	if _, there := keys[shared.key]; !there {
		t.Error("the blob of another category is gone")
	}
	if states, err := w.log.Shards(w.ctx, gone); err != nil || len(states) != 0 || w.cell.waiting() != 0 {
		t.Errorf("left: %v, %v, %d not forgotten", states, err, w.cell.waiting())
	}
	w.resolves()
	l.run(100*time.Hour, time.Hour)
	if keys := w.keys(); len(keys) != 0 {
		t.Errorf("left: %v", keys)
	}
}

// TestPins: readers hold back what has expired, for as long as they may.
func TestPins(t *testing.T) {
	w := testWorld(t)
	w.cfg.PinLimit = time.Hour
	id := w.cell.create(2*time.Hour, w.clock.Now())
	d := w.write(1, 2, id)
	w.cell.pin(id, d.id.Time())
	l := w.mustLead("one")
	defer l.close()
	l.run(170*time.Minute, 10*time.Minute)
	if !w.referred()[d.key] {
		t.Error("a pinned message was trimmed")
	}
	w.resolves()
	l.run(30*time.Minute, 10*time.Minute)
	if w.referred()[d.key] {
		t.Error("a pin held for longer than its limit")
	}
	// Given up early, it holds nothing.
	d = w.write(1, 2, id)
	w.cell.pin(id, d.id.Time())
	l.run(150*time.Minute, 10*time.Minute)
	w.cell.pin(id, 0)
	l.run(10*time.Minute, 10*time.Minute)
	if w.referred()[d.key] {
		t.Error("a pin that was given up holds")
	}
	// Nothing is trimmed while a control plane that has just started may not know the pins.
	d = w.write(1, 2, id)
	w.cell.age = time.Second
	l.run(5*time.Hour, 10*time.Minute)
	if !w.referred()[d.key] {
		t.Error("trimmed without knowing the pins")
	}
}

// TestLateArrival: a put that is carried out long after its time is found, and a copy that comes back after it was deleted.
func TestLateArrival(t *testing.T) {
	w := testWorld(t)
	w.cfg.SweepInterval = 6 * time.Hour
	id := w.cell.create(72*time.Hour, w.clock.Now())
	l := w.mustLead("one")
	defer l.close()
	late := w.put(1, 72, id)
	size := w.keys()[late.key]
	data := make([]byte, size)
	if err := errors.Join(w.blobs.ReadAt(w.ctx, late.key, data, 0), w.blobs.Delete(w.ctx, late.key)); err != nil {
		t.Fatal(err)
	}
	l.run(3*time.Hour, 10*time.Minute)
	if err := w.blobs.Put(w.ctx, late.key, data); err != nil {
		t.Fatal(err)
	}
	l.run(8*time.Hour, 10*time.Minute)
	w.clean()
	if keys := w.keys(); len(keys) != 0 {
		t.Errorf("left: %v", keys)
	}
}

// TestAncientBlob: the time of a blob's id is what a clock said, and one from long ago does not make a keeper look at every second since.
func TestAncientBlob(t *testing.T) {
	w := testWorld(t)
	id := w.cell.create(time.Hour, w.clock.Now())
	w.clock.Advance(-40 * 365 * 24 * time.Hour)
	w.put(1, 1, id)
	w.clock.Advance(40 * 365 * 24 * time.Hour)
	l := w.mustLead("one")
	defer l.close()
	l.run(time.Hour, 10*time.Minute)
	if n := len(l.blobs.schedule.slices); n > 10_000 {
		t.Errorf("%d slices", n)
	}
	if keys := w.keys(); len(keys) != 0 {
		t.Errorf("left: %v", keys)
	}
}

// TestUndecided: a blob that can't be read, and one with an epoch that the engine never gave out, are kept.
func TestUndecided(t *testing.T) {
	w := testWorld(t)
	id := w.cell.create(time.Hour, w.clock.Now())
	l := w.mustLead("one")
	defer l.close()
	w.put(1, 1, id)
	for shard := range w.epochs {
		w.epochs[shard] += 7
	}
	foreign := w.put(1, 1, id)
	damaged := pointer.Key(1, pointer.MakeBlobID(w.clock.Now(), [10]byte{9}))
	if err := w.blobs.Put(w.ctx, damaged, make([]byte, 1000)); err != nil {
		t.Fatal(err)
	}
	l.run(6*time.Hour, 10*time.Minute)
	keys := w.keys()
	if len(keys) != 2 || keys[foreign.key] == 0 || keys[damaged] == 0 {
		t.Errorf("left: %v", keys)
	}
}

// TestClaims: a keeper takes nothing from a store that it has no claim to.
func TestClaims(t *testing.T) {
	w := testWorld(t)
	id := w.cell.create(time.Hour, w.clock.Now())
	l := w.mustLead("one")
	w.write(1, 1, id)
	w.clock.Advance(3 * time.Hour)
	if err := l.pass(); err != nil {
		t.Fatal(err)
	}
	l.close()
	orphan := w.put(1, 1, id)

	// The metadata is another one: its logs are empty, so all blobs look like orphans.
	other := newWorld(t.Context(), t, w.blobs)
	defer func() {
		if err := other.log.Close(); err != nil {
			t.Error(err)
		}
	}()
	other.clock.Advance(9 * time.Hour)
	_, err := other.lead(other.deps("two"))
	var halted *HaltedError
	if !errors.As(err, &halted) || !strings.Contains(err.Error(), halted.Claims) {
		t.Fatalf("another cell: %v", err)
	}
	other.cfg.Adopt = halted.Claims
	adopted := other.mustLead("two")
	adopted.run(4*time.Hour, 10*time.Minute)
	adopted.close()
	if _, there := w.keys()[orphan.key]; !there {
		t.Error("a blob of an epoch that this engine never gave out was deleted")
	}
	claims, err := adopted.t.listClaims(w.ctx)
	if err != nil || len(claims) != 1 || claims[0].cell != adopted.t.cellName() {
		t.Errorf("claims: %v, %v", claims, err)
	}

	// It is refused from now on whoever had it before, and an engine that knows less than it did.
	if _, err = w.lead(w.deps("one")); !errors.As(err, &halted) {
		t.Errorf("the cell of before: %v", err)
	}
	x := claimRule{own: storeClaim{"x", 10}}
	if err := compareClaims(x, []storeClaim{{"x", 11}}); !errors.As(err, &halted) {
		t.Errorf("a boundary that went back: %v", err)
	}
	if err := compareClaims(x.adopting(storeClaim{"y", 11}), []storeClaim{{"x", 10}, {"x", 3}, {"y", 11}}); err != nil {
		t.Errorf("a claim that was adopted: %v", err)
	}

	// A keeper that was killed between putting a claim and deleting the one before left two: the newer one is named, and stands for both.
	two := []storeClaim{{"y", 7}, {"y", 11}}
	if err := compareClaims(x, two); !errors.As(err, &halted) || halted.Claims != two[1].key() {
		t.Errorf("of two claims %v is named", halted)
	}
	if err := compareClaims(x.adopting(two[1]), two); err != nil {
		t.Errorf("two claims, of which the newer one was adopted: %v", err)
	}
	if err := compareClaims(x.adopting(two[0]), two); !errors.As(err, &halted) || halted.Claims != two[1].key() {
		t.Errorf("two claims, of which the older one was adopted: %v", err)
	}
}

// adopting is the rule of a keeper that is started with a claim to adopt.
func (r claimRule) adopting(c storeClaim) claimRule {
	r.adopt = c.key()
	return r
}
