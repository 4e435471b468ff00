package recovery

import (
	"bytes"
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"scribe/internal/base/config"
	"scribe/internal/format/pointer"
	"scribe/internal/format/record"
	"scribe/storage/blob"
	"scribe/storage/blob/layout"
	"scribe/storage/blob/memory"
	"scribe/storage/metalog"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const created = 1_709_208_000_000_000

var (
	now    = time.UnixMicro(created).Add(10 * time.Minute)
	web    = record.MakeShardID(17, 0, 1)
	orders = record.MakeShardID(4, 3, 0)
	names  = map[uint32]string{17: "web", 4: "orders"}
)

// at is an entry of the n-th blob: what a writer of version 1 said.
type at struct {
	shard record.ShardID
	epoch uint64
	lsn   record.LSN
	blob  int
}

// blobID is the n-th id, by time.
func blobID(n int) pointer.BlobID {
	return pointer.MakeBlobID(created+int64(n)*1000, [10]byte{1, 2, 3})
}

func keyOf(n int) string { return pointer.Key(72, blobID(n)) }

// frameOf is a frame of a shard's category.
func frameOf(t testing.TB, s record.ShardID, text string) []byte {
	t.Helper()
	var b record.Builder
	if err := b.Reset(nil, record.Envelope{Category: names[s.Category()], Shard: uint32(s.Logical()), BaseTime: created}); err != nil {
		t.Fatal(err)
	}
	if err := b.AppendPayload([]byte(text)); err != nil {
		t.Fatal(err)
	}
	f, err := b.Finish()
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// put makes a blob of entries, each with a frame of its own.
func put(t testing.TB, store blob.Store, n int, h layout.History, entries ...layout.Entry) {
	t.Helper()
	b := layout.NewBuilder(blobID(n), 72, "", blobID(n).Time())
	b.SetHistory(h)
	for _, e := range entries {
		f := frameOf(t, e.Shard, fmt.Sprintf("%v %d of blob %d", e.Shard, e.LSN, n))
		e.Category = names[e.Shard.Category()]
		e.Pointer.Frames, e.Pointer.Messages, e.Pointer.MinTime, e.Pointer.MaxTime = 1, 1, created, created
		b.AddPayload(b.AddBlock(pointer.CodecNone, f, len(f)), 0, uint32(len(f)), e)
	}
	parts, err := b.Finish()
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Put(t.Context(), keyOf(n), parts...); err != nil {
		t.Fatal(err)
	}
}

// putAll makes blobs of version 1's entries.
func putAll(t testing.TB, store blob.Store, entries ...at) {
	t.Helper()
	blobs := map[int][]layout.Entry{}
	for _, e := range entries {
		blobs[e.blob] = append(blobs[e.blob], layout.Entry{Shard: e.shard, Epoch: e.epoch, LSN: e.lsn})
	}
	for n, entries := range blobs {
		put(t, store, n, layout.History{}, entries...)
	}
}

// logs is a sink in memory.
type logs struct {
	records   map[record.ShardID][]metalog.Entry
	states    map[record.ShardID]metalog.State
	producers map[record.ShardID]map[uint64]metalog.ProducerState
	retired   []uint32
}

func (l *logs) Record(s record.ShardID, lsn record.LSN, time int64, data []byte) error {
	l.records[s] = append(l.records[s], metalog.Entry{LSN: lsn, Time: time, Data: bytes.Clone(data)})
	return nil
}

func (l *logs) Producer(s record.ShardID, p metalog.ProducerState, _ record.LSN, _ int64) error {
	if l.producers[s] == nil {
		l.producers[s] = map[uint64]metalog.ProducerState{}
	}
	l.producers[s][p.Producer] = p
	return nil
}

func (l *logs) Shard(st metalog.State) error {
	l.states[st.Shard] = st
	l.records[st.Shard] = slices.DeleteFunc(l.records[st.Shard], func(e metalog.Entry) bool { return e.LSN < st.FirstLSN })
	return nil
}

func (l *logs) Retire(category uint32) { l.retired = append(l.retired, category) }

// list is what stands: shard, LSN and blob of each record; blob -1 for a lost one, -2 for one that was cut.
func (l *logs) list(t testing.TB) (out []at) {
	t.Helper()
	for s, entries := range l.records {
		for _, e := range entries {
			a := at{shard: s, lsn: e.LSN, blob: -1}
			if p, err := pointer.Decode(e.Data); err == nil {
				a.blob = int((p.Blob.Time() - created) / 1000)
			} else if string(e.Data) == CutRecord {
				a.blob = -2
			} else if string(e.Data) != LostRecord {
				t.Errorf("a record is neither a pointer nor lost: %q", e.Data)
			}
			out = append(out, a)
		}
	}
	slices.SortFunc(out, func(a, b at) int { return cmp.Or(cmp.Compare(a.shard, b.shard), cmp.Compare(a.lsn, b.lsn)) })
	return out
}

// recoverAll runs a recovery.
func recoverAll(t testing.TB, store blob.Store, edit func(*Config, *Deps)) (*logs, *Report, []Finding) {
	t.Helper()
	l, report, findings, err := tryRecover(t, store, filepath.Join(t.TempDir(), "scratch"), edit)
	if err != nil {
		t.Fatal(err)
	}
	return l, report, findings
}

func tryRecover(t testing.TB, store blob.Store, scratch string, edit func(*Config, *Deps)) (*logs, *Report, []Finding, error) {
	t.Helper()
	l := &logs{records: map[record.ShardID][]metalog.Entry{}, states: map[record.ShardID]metalog.State{}, producers: map[record.ShardID]map[uint64]metalog.ProducerState{}}
	var findings []Finding
	cfg := config.Defaults[Config]()
	cfg.Scratch, cfg.Workers = scratch, 2
	deps := Deps{Blobs: store, Now: func() time.Time { return now }, Found: func(f Finding) error { findings = append(findings, f); return nil }}
	if edit != nil {
		edit(&cfg, &deps)
	}
	report, err := Run(t.Context(), cfg, deps, l)
	return l, report, findings, err
}

// kinds are those of findings, but for what is told of categories and uncertain blobs.
func kinds(findings []Finding) (out []FindingKind) {
	for _, f := range findings {
		if f.Kind != FindingCategory && f.Kind != FindingUncertain {
			out = append(out, f.Kind)
		}
	}
	slices.Sort(out)
	return out
}

func TestVersion1(t *testing.T) {
	for name, test := range map[string]struct{ entries, want []at }{
		"in order": {
			[]at{{web, 1, 2, 1}, {orders, 5, 1, 1}, {web, 1, 1, 0}},
			[]at{{orders, 0, 1, 1}, {web, 0, 1, 0}, {web, 0, 2, 1}},
		},
		"a put that was repeated": {
			[]at{{web, 1, 1, 0}, {web, 1, 2, 0}, {web, 1, 1, 1}, {web, 1, 2, 1}},
			[]at{{web, 0, 1, 1}, {web, 0, 2, 1}},
		},
		"an append that was refused": {
			// Blob 0 held LSN 1 and 2; after the refusal there was only one payload left.
			[]at{{web, 1, 1, 0}, {web, 1, 2, 0}, {web, 1, 1, 1}},
			[]at{{web, 0, 1, 1}},
		},
		"a writer that was fenced": {
			[]at{{web, 1, 1, 0}, {web, 1, 2, 1}, {web, 1, 3, 2}, {web, 1, 4, 3}, {web, 2, 2, 4}, {web, 2, 3, 5}},
			[]at{{web, 0, 1, 0}, {web, 0, 2, 4}, {web, 0, 3, 5}},
		},
		"fenced in one log, so void in all": {
			[]at{{orders, 1, 1, 0}, {web, 1, 1, 0}, {web, 2, 1, 1}},
			[]at{{web, 0, 1, 1}},
		},
		"a gap": {
			[]at{{web, 1, 7, 0}, {web, 2, 9, 1}},
			[]at{{web, 0, 7, 0}, {web, 0, 8, -1}, {web, 0, 9, 1}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			store := memory.New()
			putAll(t, store, test.entries...)
			l, _, _ := recoverAll(t, store, nil)
			if got := l.list(t); !slices.Equal(got, test.want) {
				t.Errorf("got  %+v\nwant %+v", got, test.want)
			}
		})
	}
}

// TestVersion1History runs writers that fail in every way they may, and compares what the blobs tell with what was committed.
func TestVersion1History(t *testing.T) {
	scratch := filepath.Join(t.TempDir(), "scratch")
	rapid.Check(t, func(rt *rapid.T) {
		var (
			committed, all []at
			next           record.LSN = 1
			blobs          int
		)
		// put makes a blob of count entries from LSN on.
		put := func(epoch uint64, lsn record.LSN, count int) []at {
			var out []at
			for i := range count {
				out = append(out, at{web, epoch, lsn + record.LSN(i), blobs})
			}
			blobs++
			all = append(all, out...)
			return out
		}
		for epoch := range uint64(rapid.IntRange(1, 4).Draw(rt, "writers")) {
			epoch++
			for i := range rapid.IntRange(1, 5).Draw(rt, "flushes") {
				for range rapid.IntRange(0, 2).Draw(rt, "failures") {
					put(epoch, next, rapid.IntRange(1, 3).Draw(rt, "tried"))
				}
				// The first flush of a writer is committed: a writer that commits nothing leaves no trace that fences.
				if i == 0 || rapid.Bool().Draw(rt, "commits") {
					done := put(epoch, next, rapid.IntRange(1, 3).Draw(rt, "count"))
					committed = append(committed, done...)
					next += record.LSN(len(done))
				}
			}
			// What the writer had on the way when it was fenced, unless it is the last one.
			if epoch < 4 {
				lsn := next
				for range rapid.IntRange(0, 3).Draw(rt, "on the way") {
					lsn += record.LSN(len(put(epoch, lsn, 1)))
				}
			}
		}
		put(9, next, 1) // the last writer, which committed something
		committed = append(committed, all[len(all)-1])
		for i := range committed {
			committed[i].epoch = 0
		}
		store := memory.New()
		putAll(t, store, all...)
		l, _, _, err := tryRecover(t, store, scratch, nil)
		if err := os.RemoveAll(scratch); err != nil { // each takes megabytes, and there are hundreds
			rt.Fatal(err)
		}
		if err != nil {
			rt.Fatal(err)
		}
		if got := l.list(t); !slices.Equal(got, committed) {
			rt.Fatalf("of %+v\n got %+v\nwant %+v", all, got, committed)
		}
	})
}

// sequencedEntry is an entry of the first epoch of a log with five messages of a producer.
func sequencedEntry(s record.ShardID, lsn record.LSN, first uint64, predicted bool) layout.Entry {
	e := entry(s, 1, 1, lsn, predicted)
	e.Pointer.Sequences = []pointer.Sequence{{Producer: 7, Epoch: 1, First: first, Last: first + 4}}
	return e
}

// entry is one of version 2.
func entry(s record.ShardID, epoch uint64, start, lsn record.LSN, predicted bool) layout.Entry {
	return layout.Entry{Shard: s, Epoch: epoch, Start: start, LSN: lsn, Predicted: predicted}
}

func history(build, window uint64, exceptions ...layout.Exception) layout.History {
	return layout.History{Run: 5, Build: build, Window: window, Exceptions: exceptions}
}

// TestEvidence: what footers of version 2 say of each other.
func TestEvidence(t *testing.T) {
	void := func(build uint64) layout.Exception { return layout.Exception{Build: build, Void: true} }
	for name, test := range map[string]struct {
		put                        func(t *testing.T, s blob.Store)
		want                       []at
		committed, void, uncertain int64
		kinds                      []FindingKind
	}{
		"an older blob stands against a newer prediction": {
			put: func(t *testing.T, s blob.Store) {
				put(t, s, 1, history(1, 0), entry(web, 1, 1, 1, false), entry(web, 1, 1, 2, false))
				put(t, s, 2, history(2, 1, layout.Exception{Build: 1}), entry(web, 1, 1, 2, true))
			},
			want: []at{{web, 0, 1, 1}, {web, 0, 2, 1}}, void: 1, uncertain: 1, kinds: []FindingKind{FindingVoid},
		},
		"of predictions the one that was built later": {
			put: func(t *testing.T, s blob.Store) {
				put(t, s, 2, history(1, 0), entry(web, 1, 1, 1, false))
				put(t, s, 1, history(2, 0), entry(web, 1, 1, 2, true)) // by a clock that is ahead
				put(t, s, 0, history(3, 0), entry(web, 1, 1, 2, true))
			},
			want: []at{{web, 0, 1, 2}, {web, 0, 2, 0}}, void: 1, uncertain: 2, kinds: []FindingKind{FindingVoid},
		},
		"predictions that count on what was never put, in any log": {
			put: func(t *testing.T, s blob.Store) {
				put(t, s, 0, history(1, 0), entry(web, 1, 1, 1, false), entry(orders, 1, 1, 1, false))
				put(t, s, 1, history(3, 0), entry(web, 1, 1, 3, true), entry(orders, 1, 1, 2, true))
				put(t, s, 2, history(4, 0), entry(orders, 1, 1, 3, true))
			},
			want: []at{{orders, 0, 1, 0}, {web, 0, 1, 0}}, void: 2, uncertain: 1, kinds: []FindingKind{FindingVoid, FindingVoid},
		},
		"what is missing may be in a blob that is damaged": {
			put: func(t *testing.T, s blob.Store) {
				put(t, s, 0, history(1, 0), entry(web, 1, 1, 1, false))
				put(t, s, 1, history(3, 0), entry(web, 1, 1, 3, true))
				if err := s.Put(t.Context(), keyOf(2), []byte("damaged")); err != nil {
					t.Fatal(err)
				}
			},
			want: []at{{web, 0, 1, 0}, {web, 0, 2, -1}, {web, 0, 3, 1}}, uncertain: 2, kinds: []FindingKind{FindingDamaged, FindingGap},
		},
		"the writer tells": {
			put: func(t *testing.T, s blob.Store) {
				put(t, s, 1, history(1, 0), entry(web, 1, 1, 1, false))
				put(t, s, 2, history(2, 1, layout.Exception{Build: 1}), entry(web, 1, 1, 2, false))
				put(t, s, 3, history(3, 2, void(2)), entry(orders, 1, 1, 1, false))
			},
			want: []at{{orders, 0, 1, 3}, {web, 0, 1, 1}}, committed: 1, void: 1, uncertain: 1, kinds: []FindingKind{FindingVoid},
		},
		"the next epoch tells, and is void itself": {
			put: func(t *testing.T, s blob.Store) {
				put(t, s, 1, history(1, 0), entry(web, 1, 1, 1, false))
				put(t, s, 2, history(2, 0), entry(web, 1, 1, 2, false))
				put(t, s, 3, layout.History{Run: 6, Build: 1}, entry(web, 2, 2, 5, true))
				put(t, s, 4, layout.History{Run: 6, Build: 2, Window: 1, Exceptions: []layout.Exception{void(1)}}, entry(orders, 1, 1, 1, false))
			},
			want: []at{{orders, 0, 1, 4}, {web, 0, 1, 1}}, committed: 1, void: 2, uncertain: 1, kinds: []FindingKind{FindingVoid, FindingVoid},
		},
		"committed by all that is known, and not": {
			put: func(t *testing.T, s blob.Store) {
				put(t, s, 1, history(1, 0), entry(web, 1, 1, 1, false))
				put(t, s, 2, history(2, 1), entry(orders, 1, 1, 1, false))
				put(t, s, 3, history(3, 2, void(1)), entry(orders, 1, 1, 2, false))
			},
			want: []at{{orders, 0, 1, 2}, {orders, 0, 2, 3}, {web, 0, 1, 1}}, committed: 2, uncertain: 1, kinds: []FindingKind{FindingContradiction},
		},
		"two blobs that were committed claim a place": {
			put: func(t *testing.T, s blob.Store) {
				put(t, s, 1, history(1, 0), entry(web, 1, 1, 1, false))
				put(t, s, 2, history(2, 1), entry(web, 1, 1, 1, false))
				put(t, s, 3, history(3, 2), entry(orders, 1, 1, 1, false))
			},
			want: []at{{orders, 0, 1, 3}, {web, 0, 1, 2}}, committed: 2, uncertain: 1, kinds: []FindingKind{FindingConflict},
		},
		"messages that were sent again while their commit was unknown": {
			put: func(t *testing.T, s blob.Store) {
				put(t, s, 1, history(1, 0), sequencedEntry(orders, 1, 0, false))
				put(t, s, 2, history(2, 1, layout.Exception{Build: 1}), sequencedEntry(orders, 2, 5, true))
				// Blob 3 has them again, blob 4 what was written next: had it been committed, blob 3 had been before it.
				put(t, s, 3, history(3, 2, layout.Exception{Build: 2}, layout.Exception{Build: 1}), sequencedEntry(orders, 3, 5, true), entry(web, 1, 1, 1, false))
				put(t, s, 4, history(4, 3, layout.Exception{Build: 3}, layout.Exception{Build: 2}, layout.Exception{Build: 1}), sequencedEntry(orders, 4, 10, true))
			},
			want: []at{{orders, 0, 1, 1}, {orders, 0, 2, 2}}, void: 2, uncertain: 2, kinds: []FindingKind{FindingRestart, FindingVoid, FindingVoid},
		},
		"messages that were cut into other frames and sent again, when they were committed": {
			put: func(t *testing.T, s blob.Store) {
				put(t, s, 1, history(1, 0), sequencedEntry(orders, 1, 0, false))
				put(t, s, 2, history(2, 1), sequencedEntry(orders, 2, 3, false))
			},
			want: []at{{orders, 0, 1, 1}}, committed: 1, void: 1, kinds: []FindingKind{FindingVoid},
		},
		"messages that are twice in a payload, as they were sent again before it was put": {
			put: func(t *testing.T, s blob.Store) {
				put(t, s, 1, history(1, 0), sequencedEntry(orders, 1, 0, false))
				twice := sequencedEntry(orders, 2, 5, true)
				twice.Pointer.Sequences = append(twice.Pointer.Sequences, twice.Pointer.Sequences[0])
				put(t, s, 2, history(2, 1), twice)
			},
			want: []at{{orders, 0, 1, 1}}, committed: 1, void: 1, kinds: []FindingKind{FindingVoid},
		},
		"what was committed at the end is lost": {
			put: func(t *testing.T, s blob.Store) {
				put(t, s, 1, history(1, 0), entry(web, 1, 1, 1, false))
				put(t, s, 2, layout.History{Run: 6, Build: 1}, entry(web, 2, 4, 4, false))
				put(t, s, 3, layout.History{Run: 6, Build: 2, Window: 1, Exceptions: []layout.Exception{void(1)}}, entry(orders, 1, 1, 1, false))
			},
			want:      []at{{orders, 0, 1, 3}, {web, 0, 1, 1}, {web, 0, 2, -1}, {web, 0, 3, -1}},
			committed: 1, void: 1, uncertain: 1, kinds: []FindingKind{FindingGap, FindingVoid},
		},
	} {
		t.Run(name, func(t *testing.T) {
			store := memory.New()
			test.put(t, store)
			l, report, findings := recoverAll(t, store, nil)
			if got := l.list(t); !slices.Equal(got, test.want) {
				t.Errorf("got  %+v\nwant %+v", got, test.want)
			}
			if report.Committed != test.committed || report.Void != test.void || report.Uncertain != test.uncertain {
				t.Errorf("%d committed, %d void, %d uncertain", report.Committed, report.Void, report.Uncertain)
			}
			if got := kinds(findings); !slices.Equal(got, test.kinds) {
				t.Errorf("findings %v, want %v", got, test.kinds)
			}
		})
	}
}

// TestStates: what a log begins with, and what its writers may do.
func TestStates(t *testing.T) {
	store := memory.New()
	put(t, store, 0, layout.History{}, layout.Entry{Shard: orders, Epoch: 7, LSN: 3, Pointer: pointer.Pointer{Sequences: []pointer.Sequence{
		{Producer: 1, Epoch: 2, First: 10, Last: 11}, {Producer: 2, Epoch: 1, First: 0, Last: 5},
	}}})
	put(t, store, 1, layout.History{}, layout.Entry{Shard: orders, Epoch: 9, LSN: 4, Pointer: pointer.Pointer{Sequences: []pointer.Sequence{
		{Producer: 1, Epoch: 2, First: 12, Last: 14},
	}}})
	put(t, store, 2_000_000, layout.History{}, layout.Entry{Shard: orders, Epoch: 9, LSN: 5}) // by a clock that is half an hour ahead
	put(t, store, 3, layout.History{}, layout.Entry{Shard: orders, Epoch: 9, LSN: 6})
	l, report, _ := recoverAll(t, store, nil)
	want := metalog.State{Shard: orders, FirstLSN: 3, NextLSN: 7, Epoch: 9 + EpochMargin, LastTime: now.UnixMicro()}
	if got := l.states[orders]; got != want {
		t.Errorf("state %+v, want %+v", got, want)
	}
	var times []int64
	for _, e := range l.records[orders] {
		times = append(times, e.Time-created)
	}
	if want := []int64{0, 1000, now.UnixMicro() - created, now.UnixMicro() - created}; !slices.Equal(times, want) {
		t.Errorf("times %v, want %v", times, want)
	}
	if p := l.producers[orders]; p[1] != (metalog.ProducerState{Producer: 1, Epoch: 2, Next: 15}) || p[2] != (metalog.ProducerState{Producer: 2, Epoch: 1, Next: 6}) {
		t.Errorf("producers %+v", p)
	}
	if report.Clock != now.UnixMicro() || report.NextID != 18-17+4+IDMargin || report.Messages != 4 {
		t.Errorf("%+v", report)
	}
}

// TestGaps: what is before a gap and has expired was trimmed; a gap that is too long is not filled.
func TestGaps(t *testing.T) {
	entries := []at{{web, 1, 1, 0}, {web, 1, 5, 1}, {web, 1, 6, 2}}
	for name, test := range map[string]struct {
		edit func(*Config, *Deps)
		want []at
		lost int64
		kind FindingKind
	}{
		"filled": {want: []at{{web, 0, 1, 0}, {web, 0, 2, -1}, {web, 0, 3, -1}, {web, 0, 4, -1}, {web, 0, 5, 1}, {web, 0, 6, 2}}, lost: 3, kind: FindingGap},
		"expired": {
			edit: func(_ *Config, d *Deps) { d.Now = func() time.Time { return now.Add(72 * time.Hour) } },
			want: []at{{web, 0, 5, 1}, {web, 0, 6, 2}}, kind: FindingRestart,
		},
		"too long": {edit: func(c *Config, _ *Deps) { c.MaxFill = 2 }, want: []at{{web, 0, 5, 1}, {web, 0, 6, 2}}, lost: 4, kind: FindingRestart},
	} {
		t.Run(name, func(t *testing.T) {
			store := memory.New()
			putAll(t, store, entries...)
			l, report, findings := recoverAll(t, store, test.edit)
			if got := l.list(t); !slices.Equal(got, test.want) {
				t.Errorf("got  %+v\nwant %+v", got, test.want)
			}
			if report.Lost != test.lost || report.Whole() != (test.lost == 0) || !slices.Contains(kinds(findings), test.kind) {
				t.Errorf("%+v, %v", report, kinds(findings))
			}
		})
	}
}

// TestEnds: a log begins anew where its end may have been removed, and keeps its end elsewhere. What it began with anew stands in the next
// recovery, beside blobs of before.
func TestEnds(t *testing.T) {
	later := now.Add(73 * time.Hour)
	at := func(l *Deps) { l.Now = func() time.Time { return later } }
	for name, test := range map[string]struct {
		edit func(*Config, *Deps)
		anew bool
	}{
		"not expired":                    {edit: func(c *Config, _ *Deps) { c.TrimmedUntil = now.UnixMicro() }},
		"nothing was ever removed":       {edit: func(_ *Config, d *Deps) { at(d) }},
		"expired after retention ended":  {edit: func(c *Config, d *Deps) { c.TrimmedUntil = now.UnixMicro(); at(d) }},
		"expired before retention ended": {edit: func(c *Config, d *Deps) { c.TrimmedUntil = later.UnixMicro(); at(d) }, anew: true},
	} {
		t.Run(name, func(t *testing.T) {
			store := memory.New()
			put(t, store, 0, history(1, 0), sequencedEntry(orders, 1, 0, false))
			l, report, findings := recoverAll(t, store, test.edit)
			st := l.states[orders]
			if !test.anew {
				if st.FirstLSN != 1 || st.NextLSN != 2 || st.Origin != 0 || report.Restarts != 0 {
					t.Fatalf("%+v, %+v", st, report.LogCounts)
				}
				return
			}
			if st.FirstLSN != report.Origin || st.Origin != report.Origin || st.NextLSN != report.Origin || report.Origin < record.LSN(later.UnixMicro()) || st.Epoch <= uint64(report.Origin) {
				t.Errorf("%+v, the origin is %d", st, report.Origin)
			}
			if len(l.producers[orders]) == 0 || !report.Whole() || !slices.Contains(kinds(findings), FindingRestart) {
				t.Errorf("%+v, %+v, %v", l.producers, report.LogCounts, kinds(findings))
			}
			// The log has a record since, and the metadata is lost again.
			put(t, store, int(later.Sub(now)/time.Millisecond)+700_000, layout.History{Run: 6, Build: 1}, entry(orders, st.Epoch+1, st.NextLSN, st.NextLSN, false))
			l, report, _ = recoverAll(t, store, func(c *Config, d *Deps) {
				c.TrimmedUntil = later.UnixMicro()
				d.Now = func() time.Time { return later.Add(10 * time.Minute) }
			})
			again := l.states[orders]
			if again.FirstLSN != st.NextLSN || again.Origin != again.FirstLSN || again.NextLSN != st.NextLSN+1 || !report.Whole() {
				t.Errorf("%+v, was %+v: %+v", again, st, report.LogCounts)
			}
		})
	}
}

// TestLateBlob: a blob that arrives after a recovery that did not find its log is no record of the log that began anew, though it has not
// expired when the metadata is lost again.
func TestLateBlob(t *testing.T) {
	store := memory.New()
	origin := record.LSN(now.UnixMicro())
	put(t, store, 0, history(1, 0), entry(web, 5, 14, 14, false))
	put(t, store, 700_000, layout.History{Run: 6, Build: 1}, entry(web, uint64(origin)+1, origin, origin, false))
	l, report, findings := recoverAll(t, store, func(_ *Config, d *Deps) { d.Now = func() time.Time { return now.Add(10 * time.Minute) } })
	if st := l.states[web]; st.FirstLSN != origin || st.NextLSN != origin+1 || !report.Whole() {
		t.Errorf("%+v, %+v, %v", st, report.LogCounts, findings)
	}
}
