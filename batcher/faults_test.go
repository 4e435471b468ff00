package batcher

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"scribe/internal/format/record"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/blob"
	"scribe/storage/metalog"
)

// alpha0 is the shard that most of these tests write to.
var alpha0 = record.MakeShardID(1, 0, 7)

// mustBe checks the frames of a shard, by the text of their only message.
func (c *cell) mustBe(shard record.ShardID, want ...string) {
	c.t.Helper()
	var got []string
	for _, f := range c.frames(shard) {
		var d record.Decoder
		if _, err := d.Reset(f); err != nil {
			c.t.Fatal(err)
		}
		for r := (record.Record{}); d.Next(&r); {
			got = append(got, string(r.Payload))
		}
	}
	if !slices.Equal(got, want) {
		c.t.Errorf("shard %v holds %q, want %q", shard, got, want)
	}
}

// mustOrphan checks how many blobs nothing points to.
func (c *cell) mustOrphan(want float64) {
	c.t.Helper()
	if got := counterValue(c.t, c.metrics.orphans); got != want {
		c.t.Errorf("%v orphans, want %v", got, want)
	}
}

// background submits frames for shard alpha/0, one message each, and returns the channel of the results.
func (c *cell) background(texts ...string) <-chan []*scribev1.FrameResult {
	frames := make([][]byte, len(texts))
	for i, text := range texts {
		frames[i] = makeFrame(c.t, "alpha", 0, nil, text)
	}
	return c.async(frames...)
}

// async submits frames and returns the channel of the results.
func (c *cell) async(frames ...[]byte) <-chan []*scribev1.FrameResult {
	out := make(chan []*scribev1.FrameResult, 1)
	go func() { out <- c.submit(committed, frames...) }()
	return out
}

func TestPutIsRepeatedUnderAnotherKey(t *testing.T) {
	c := newCell(t, testConfig(), nil, nil)
	// The first attempt stored the blob, as the store may after any error.
	c.store.puts.plan(step{err: errInjected, after: true}, step{err: errInjected}, step{err: blob.ErrExists})
	c.commit(makeFrame(t, "alpha", 0, nil, "x"))
	c.mustBe(alpha0, "x")
	if n := len(c.blobs()); n != 2 {
		t.Errorf("%d blobs", n)
	}
	c.mustOrphan(3)
	c.verify()
}

func TestPutFails(t *testing.T) {
	cfg := testConfig()
	cfg.PutAttempts = 2
	c := newCell(t, cfg, nil, nil)
	// Of two blobs one fails: only its frames do.
	c.store.puts.plan(step{err: errInjected}, step{err: errInjected}, step{err: errInjected}, step{})
	results := c.submit(committed, makeFrame(t, "alpha", 0, nil, "a"), makeFrame(t, "brief", 0, nil, "b"))
	failed := 0
	for _, r := range results {
		if r.GetError() != nil {
			failed++
			if r.GetError().GetReason() != scribev1.Reason_REASON_NO_BACKEND || r.GetError().GetRetryAfter().AsDuration() <= 0 {
				t.Errorf("error %v", r.GetError())
			}
		}
	}
	if failed == 0 {
		t.Error("no frame failed")
	}
	// What failed is not visible, and the logs go on without a hole.
	after := c.commit(makeFrame(t, "alpha", 0, nil, "c"), makeFrame(t, "brief", 0, nil, "d"))
	for i, r := range after {
		want := uint64(1)
		if results[i].GetError() == nil {
			want = 2
		}
		if r.GetLsn() != want {
			t.Errorf("frame %d is at %s, want LSN %d", i, placeOf(r), want)
		}
	}
	c.verify()
}

func TestStoreIsFull(t *testing.T) {
	c := newCell(t, testConfig(), nil, nil)
	c.store.puts.plan(step{err: blob.ErrNoSpace})
	results := c.submit(committed, makeFrame(t, "alpha", 0, nil, "a"))
	if got := reasons(results); got[0] != scribev1.Reason_REASON_OVERLOADED {
		t.Errorf("reasons %v", got)
	}
	if n := c.store.puts.count(); n != 1 {
		t.Errorf("%d attempts to put into a full store", n)
	}
	c.mustBe(alpha0)
	c.verify()
}

// A flush that is uploaded before the one in front of it is answered after it.
func TestOrderOfFlushesInFlight(t *testing.T) {
	c := newCell(t, testConfig(), nil, nil)
	c.commit(makeFrame(t, "alpha", 0, nil, "0"))
	hold, seen, through := make(chan struct{}), make(chan struct{}), make(chan struct{})
	c.store.puts.plan(step{hold: hold, seen: seen}, step{seen: through})
	first := c.background("1")
	<-seen
	second := c.background("2")
	<-through
	select {
	case r := <-second:
		t.Errorf("the second flush was answered first: %v", r)
	default:
	}
	close(hold)
	if r := (<-first)[0]; r.GetLsn() != 2 {
		t.Errorf("the first flush: %v", r)
	}
	if r := (<-second)[0]; r.GetLsn() != 3 {
		t.Errorf("the second flush: %v", r)
	}
	c.mustBe(alpha0, "0", "1", "2")
	c.mustOrphan(0)
	c.verify()
}

// When a flush fails, those behind it have predicted places that they will not get: their blobs are put again with the right ones
// (checkFooter looks).
func TestFlushBehindAFailedOne(t *testing.T) {
	cfg := testConfig()
	cfg.PutAttempts = 1
	c := newCell(t, cfg, nil, nil)
	c.commit(makeFrame(t, "alpha", 0, nil, "0"))
	hold, seen, through := make(chan struct{}), make(chan struct{}), make(chan struct{})
	c.store.puts.plan(step{hold: hold, seen: seen, err: errInjected}, step{seen: through})
	first := c.background("1")
	<-seen
	second := c.background("2")
	<-through
	close(hold)
	if r := (<-first)[0]; r.GetError().GetReason() != scribev1.Reason_REASON_NO_BACKEND {
		t.Errorf("the first flush: %v", r)
	}
	if r := (<-second)[0]; r.GetLsn() != 2 {
		t.Errorf("the second flush: %v", r)
	}
	c.commit(makeFrame(t, "alpha", 0, nil, "3"))
	c.mustBe(alpha0, "0", "2", "3")
	c.mustOrphan(2)
	c.verify()
}

func TestAppendWithLostAnswer(t *testing.T) {
	c := newCell(t, testConfig(), nil, nil)
	c.commit(makeFrame(t, "alpha", 0, nil, "0"))
	for _, tc := range []struct {
		name  string
		steps []step
		reads []step
	}{
		{"applied", []step{{err: errInjected, after: true}}, nil},
		{"not applied", []step{{err: errInjected}}, nil},
		{"applied, then silence", []step{{err: errInjected, after: true}, {err: errInjected}, {err: errInjected}}, nil},
		{"reading it back fails first", []step{{err: errInjected, after: true}}, []step{{err: errInjected}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c.log.appends.plan(tc.steps...)
			c.log.reads.plan(tc.reads...)
			before := len(c.frames(alpha0))
			c.commit(makeFrame(t, "alpha", 0, nil, tc.name), makeFrame(t, "once", 0, nil, tc.name))
			if after := len(c.frames(alpha0)); after != before+1 {
				t.Errorf("%d frames were stored", after-before)
			}
			c.mustOrphan(0)
			c.verify()
		})
	}
}

// The append is applied, its answer lost, and another writer takes the log before it is repeated.
func TestAppendWithLostAnswerThenFenced(t *testing.T) {
	c := newCell(t, testConfig(), nil, nil)
	hold, seen := make(chan struct{}), make(chan struct{})
	c.log.appends.plan(step{err: errInjected, after: true}, step{hold: hold, seen: seen})
	first := c.background("1")
	<-seen
	if _, err := c.log.Log.Open(t.Context(), "other", []record.ShardID{alpha0}); err != nil {
		t.Fatal(err)
	}
	close(hold)
	if r := (<-first)[0]; r.GetLsn() != 1 || r.GetError() != nil {
		t.Errorf("result %v", r)
	}
	c.mustBe(alpha0, "1")
	c.mustOrphan(0)
	// The log is this batcher's again.
	c.commit(makeFrame(t, "alpha", 0, nil, "2"))
	c.mustBe(alpha0, "1", "2")
	c.verify()
}

// The append is not applied, which nobody knows, and another writer takes the log before it is repeated.
func TestAppendIsLostThenFenced(t *testing.T) {
	c := newCell(t, testConfig(), nil, nil)
	hold, seen := make(chan struct{}), make(chan struct{})
	c.log.appends.plan(step{err: errInjected}, step{hold: hold, seen: seen})
	first := c.background("1")
	<-seen
	if _, err := c.log.Log.Open(t.Context(), "other", []record.ShardID{alpha0}); err != nil {
		t.Fatal(err)
	}
	close(hold)
	if r := (<-first)[0]; r.GetLsn() != 1 || r.GetError() != nil {
		t.Errorf("result %v", r)
	}
	c.mustBe(alpha0, "1")
	c.mustOrphan(1)
	c.verify()
}

// Another writer takes more logs than the engine's answer lists.
func TestManyLogsAreLost(t *testing.T) {
	cfg := testConfig()
	cfg.CommitAttempts = 1
	c := newCell(t, cfg, nil, nil)
	const categories = metalog.MaxConflicts + 500
	var (
		frames [][]byte
		shards []record.ShardID
	)
	for i := range uint32(categories) {
		name := fmt.Sprintf("trickle-%d", i)
		c.catalog[name] = &scribev1.Category{Name: name, Id: 100 + i, Shards: 1}
		frames = append(frames, makeFrame(t, name, 0, nil, "x"))
		shards = append(shards, record.MakeShardID(100+i, 0, 7))
	}
	c.commit(frames...)
	if _, err := c.log.Log.Open(t.Context(), "other", shards); err != nil {
		t.Fatal(err)
	}
	for i, r := range c.submit(committed, frames...) {
		if r.GetError() != nil || r.GetLsn() != 2 {
			t.Fatalf("frame %d: %v", i, r)
		}
	}
	c.mustOrphan(1)
	c.verify()
}

func TestFencedWriterOpensAgain(t *testing.T) {
	c := newCell(t, testConfig(), nil, nil)
	c.commit(makeFrame(t, "alpha", 0, nil, "0"))
	states, err := c.log.Log.Open(t.Context(), "other", []record.ShardID{alpha0})
	if err != nil {
		t.Fatal(err)
	}
	// The other one has written a record that is no pointer of ours.
	if _, err := c.log.Log.Append(t.Context(), &metalog.Append{Shards: []metalog.ShardAppend{{
		Shard: alpha0, Epoch: states[0].Epoch, Records: [][]byte{[]byte("other")},
	}}}); err != nil {
		t.Fatal(err)
	}
	r := c.commit(makeFrame(t, "alpha", 0, nil, "1"), makeFrame(t, "alpha", 1, nil, "2"))
	if r[0].GetLsn() != 3 || r[1].GetLsn() != 1 {
		t.Errorf("results %v", r)
	}
	c.mustOrphan(1)
	entries, err := c.log.Log.Read(t.Context(), alpha0, 3, 1, 0)
	if err != nil {
		t.Fatal(err)
	}
	c.checkPayload(alpha0, entries[0])
	c.verify()
}

func TestSlotIsLost(t *testing.T) {
	c := newCell(t, testConfig(), nil, nil)
	c.commit(makeFrame(t, "alpha", 0, nil, "0"))
	hold, seen := make(chan struct{}), make(chan struct{})
	c.store.puts.plan(step{hold: hold, seen: seen})
	first := c.background("1", "2")
	<-seen
	// Meanwhile the slot is another member's, which opens the log, and this batcher has got slot 8.
	if _, err := c.log.Log.Open(t.Context(), "other", []record.ShardID{alpha0}); err != nil {
		t.Fatal(err)
	}
	c.slot.Store(8)
	close(hold)
	moved := record.MakeShardID(1, 0, 8)
	for _, r := range <-first {
		if r.GetError() != nil || record.ShardID(r.GetShard()) != moved {
			t.Errorf("result %v", r)
		}
	}
	c.commit(makeFrame(t, "alpha", 0, nil, "3"))
	c.mustBe(alpha0, "0")
	c.mustBe(moved, "1", "2", "3")

	// And now it has none, until it has one again.
	seen, hold = make(chan struct{}), make(chan struct{})
	c.store.puts.plan(step{hold: hold, seen: seen})
	first = c.background("4")
	<-seen
	if _, err := c.log.Log.Open(t.Context(), "other", []record.ShardID{moved}); err != nil {
		t.Fatal(err)
	}
	c.slot.Store(0)
	close(hold)
	if got := reasons(<-first); got[0] != scribev1.Reason_REASON_FENCED {
		t.Errorf("reasons %v", got)
	}
	c.slot.Store(9)
	c.commit(makeFrame(t, "alpha", 0, nil, "5"))
	c.mustBe(record.MakeShardID(1, 0, 9), "5")
	c.verify()
}

// Frames of an old and a new slot may be in one flush: the old ones move, in front.
func TestSlotChangesWithinAFlush(t *testing.T) {
	c := newCell(t, testConfig(), nil, nil)
	c.commit(makeFrame(t, "alpha", 0, nil, "0"))
	hold, seen := make(chan struct{}), make(chan struct{})
	c.store.puts.plan(step{hold: hold, seen: seen}, step{})
	first := c.background("1")
	<-seen
	c.submit(none, makeFrame(t, "alpha", 0, nil, "2"))
	c.slot.Store(8)
	if _, err := c.log.Log.Open(t.Context(), "other", []record.ShardID{alpha0}); err != nil {
		t.Fatal(err)
	}
	second := c.background("3")
	close(hold)
	<-first
	<-second
	if err := c.Close(t.Context()); err != nil {
		t.Error(err)
	}
	c.mustBe(alpha0, "0")
	c.mustBe(record.MakeShardID(1, 0, 8), "1", "2", "3")
	c.verify()
}

func TestSealedShardFailsAlone(t *testing.T) {
	c := newCell(t, testConfig(), nil, nil)
	c.commit(makeFrame(t, "alpha", 0, nil, "0"), makeFrame(t, "alpha", 1, nil, "0"))
	if _, err := c.log.Seal(t.Context(), alpha0); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time it is known before
		results := c.submit(committed, makeFrame(t, "alpha", 0, nil, "1"), makeFrame(t, "alpha", 1, nil, "1"), makeFrame(t, "beta", 0, nil, "1"))
		if got := reasons(results); !slices.Equal(got, []scribev1.Reason{scribev1.Reason_REASON_SEALED, 0, 0}) {
			t.Errorf("reasons %v", got)
		}
	}
	c.mustBe(alpha0, "0")
	c.mustBe(record.MakeShardID(1, 1, 7), "0", "1", "1")
	c.verify()
}

func TestStaleBlobIsPutAgain(t *testing.T) {
	c := newCell(t, testConfig(), nil, nil)
	hold, seen := make(chan struct{}), make(chan struct{})
	c.log.appends.plan(step{hold: hold, seen: seen})
	first := c.background("1")
	<-seen
	if _, err := c.log.AdvanceBoundary(t.Context(), time.Now().UnixMicro()); err != nil {
		t.Fatal(err)
	}
	close(hold)
	if r := (<-first)[0]; r.GetError() != nil {
		t.Errorf("result %v", r)
	}
	c.mustBe(alpha0, "1")
	c.verify()
}

func TestOpenFails(t *testing.T) {
	c := newCell(t, testConfig(), nil, nil)
	// Once while the flush is prepared, and once when it is its turn.
	c.log.opens.plan(step{err: errInjected}, step{err: errInjected})
	c.commit(makeFrame(t, "alpha", 0, nil, "1"))
	c.mustBe(alpha0, "1")
	c.verify()

	// For good: only the frames of logs that are not open fail.
	cfg := testConfig()
	cfg.CommitPatience = 20 * time.Millisecond
	c = newCell(t, cfg, nil, nil)
	c.commit(makeFrame(t, "alpha", 0, nil, "1"))
	c.log.opens.always(step{err: errInjected})
	results := c.submit(committed, makeFrame(t, "alpha", 0, nil, "2"), makeFrame(t, "beta", 0, nil, "x"))
	if got := reasons(results); !slices.Equal(got, []scribev1.Reason{0, scribev1.Reason_REASON_NO_BACKEND}) {
		t.Errorf("reasons %v", got)
	}
	c.log.opens.always(step{})
	c.commit(makeFrame(t, "beta", 0, nil, "y"))
	c.mustBe(alpha0, "1", "2")
	c.mustBe(record.MakeShardID(2, 0, 7), "y")
	c.verify()
}

// The engine does not answer for longer than CommitPatience. Writers learn that the outcome is unknown, and it really is.
func TestUnknownOutcome(t *testing.T) {
	for _, applied := range []bool{false, true} {
		t.Run(map[bool]string{false: "not applied", true: "applied"}[applied], func(t *testing.T) {
			cfg := testConfig()
			cfg.CommitPatience = 0
			c := newCell(t, cfg, nil, nil)
			c.commit(makeFrame(t, "alpha", 0, nil, "0"))
			c.log.appends.plan(step{err: errInjected, after: applied})
			results := c.submit(committed, makeFrame(t, "alpha", 0, nil, "1"))
			if got := reasons(results); got[0] != scribev1.Reason_REASON_UNKNOWN_OUTCOME {
				t.Errorf("reasons %v", got)
			}
			c.commit(makeFrame(t, "alpha", 0, nil, "2"))
			want := []string{"0", "2"}
			if applied {
				want = []string{"0", "1", "2"}
			}
			c.mustBe(alpha0, want...)
			c.mustOrphan(0) // nobody knows
			c.verify()
		})
	}
}

func TestEngineIsClosed(t *testing.T) {
	for _, tc := range []struct {
		err    error
		reason scribev1.Reason
	}{
		{metalog.ErrClosed, scribev1.Reason_REASON_NO_BACKEND},
		{metalog.ErrInvalid, scribev1.Reason_REASON_UNSPECIFIED},
	} {
		cfg := testConfig()
		cfg.CommitPatience = 20 * time.Millisecond
		c := newCell(t, cfg, nil, nil)
		c.log.appends.always(step{err: tc.err})
		results := c.submit(committed, makeFrame(t, "alpha", 0, nil, "1"))
		if e := results[0].GetError(); e == nil || e.GetReason() != tc.reason || !strings.Contains(e.GetMessage(), tc.err.Error()) {
			t.Errorf("error %v", e)
		}
		c.mustBe(alpha0)
		c.mustOrphan(1)
		c.verify()
	}
}

// Two batchers that are given frames of one exactly_once shard take its log from each other, and neither loses a frame.
func TestTwoBatchersOfOneLog(t *testing.T) {
	log := newLog(t)
	a := newCell(t, testConfig(), log, nil)
	b := newCell(t, testConfig(), log, a.store.Store)
	shard := record.MakeShardID(4, 0, 0)
	var want []string
	for i := range 6 {
		text := string(rune('a' + i))
		want = append(want, text)
		c := []*cell{a, b}[i%2]
		c.commit(makeFrame(t, "once", 0, &sequence{producer: 5, epoch: 1, first: uint64(i)}, text))
	}
	a.mustBe(shard, want...)
	a.verify()
	b.verify()
}
