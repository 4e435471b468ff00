package retention

import (
	"testing"
	"time"

	"scribe/internal/format/pointer"
	"scribe/internal/format/record"
	"scribe/storage/metalog"
)

// TestAudit: everything that dangles is found, and nothing else.
func TestAudit(t *testing.T) {
	w := testWorld(t)
	id := w.cell.create(time.Hour, w.clock.Now())
	expired := w.write(1, 72, id)
	orphan := w.put(2, 72, id)
	away := w.put(6, 72, id) // what its log's new engine has of it is not known here
	if _, err := w.log.MoveOut(w.ctx, away.append.Shards[0].Shard, "a", "b"); err != nil {
		t.Fatal(err)
	}
	damaged := pointer.Key(72, pointer.MakeBlobID(w.clock.Now(), [10]byte{9}))
	if err := w.blobs.Put(w.ctx, damaged, make([]byte, 1000)); err != nil {
		t.Fatal(err)
	}
	w.clock.Advance(2 * time.Hour)
	lost := w.write(3, 72, id)
	if err := w.blobs.Delete(w.ctx, lost.key); err != nil {
		t.Fatal(err)
	}
	w.write(3, 72, id)
	l := w.mustLead("one")
	defer l.close()
	if _, err := l.logs.runRound(w.ctx); err != nil { // it trims, and deletes nothing
		t.Fatal(err)
	}
	if _, err := w.log.AdvanceBoundary(w.ctx, w.clock.Now()-time.Hour.Microseconds()); err != nil {
		t.Fatal(err)
	}
	young := w.put(4, 72, id)
	w.epochs[young.append.Shards[0].Shard] += 3
	unknown := w.put(4, 72, id)
	want := map[string]FindingKind{
		expired.key: FindingExpired, orphan.key: FindingOrphan, damaged: FindingDamaged, lost.key: FindingMissing, young.key: FindingYoung,
		unknown.key: FindingUnknown, away.key: FindingUnknown,
	}
	result, err := Audit(w.ctx, w.log, w.blobs, []AuditCategory{{id, "c"}}, func(f Finding) error {
		if want[f.Key] != f.Kind {
			t.Errorf("%s: %s, want %s", f.Key, f.Kind, want[f.Key])
		}
		if f.Kind == FindingMissing && (f.Category != "c" || f.LSN != 1 || f.Pointers != 1) {
			t.Errorf("%+v", f)
		}
		delete(want, f.Key)
		return nil
	})
	if err != nil || len(want) > 0 || result.Blobs != 7 || result.Pointers != 2 {
		t.Errorf("%v; not found: %v; %+v", err, want, result)
	}
}

// TestAuditOfStays: an engine that had a log twice has a gap in it, whose records are in another engine. What it has is audited, on both sides.
func TestAuditOfStays(t *testing.T) {
	w := testWorld(t)
	id := w.cell.create(time.Hour, w.clock.Now())
	shard := record.MakeShardID(id, 0, 5)
	w.write(5, 72, id)
	h, err := w.log.MoveOut(w.ctx, shard, "a", "b")
	if err != nil {
		t.Fatal(err)
	}
	back := metalog.Handover{Shard: shard, From: "b", To: "a", NextLSN: h.NextLSN + 4, Epoch: h.Epoch + 1, LastTime: h.LastTime, Time: h.Time}
	if _, err := w.log.MoveIn(w.ctx, back, nil); err != nil {
		t.Fatal(err)
	}
	delete(w.epochs, shard)
	w.write(5, 72, id)
	result, err := Audit(w.ctx, w.log, w.blobs, []AuditCategory{{id, "c"}}, func(f Finding) error {
		t.Errorf("%+v", f)
		return nil
	})
	if err != nil || result.Blobs != 2 || result.Pointers != 2 {
		t.Errorf("%v, %+v; want 2 blobs and 2 pointers", err, result)
	}
}
