package writeproxy

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"scribe/columnar"
	"scribe/internal/base/config"
	"scribe/internal/format/loss"
	"scribe/internal/format/placement"
	"scribe/internal/format/record"
	"scribe/internal/transport/layouts"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// placing adds a category that places messages, and returns its layout.
func (c *cell) placing(by scribev1.ShardBy, field string, more func(*scribev1.Category)) *placement.Layout {
	v := &scribev1.Category{Name: "placed", Id: 9, Shards: 8, ShardBy: by, ShardField: field, MaxMessageBytes: 1 << 20}
	if more != nil {
		more(v)
	}
	c.catalog.mu.Lock()
	defer c.catalog.mu.Unlock()
	c.catalog.view["placed"], c.catalog.all["placed"] = v, v
	return layouts.Current(v)
}

// placedFrame is a frame of messages with keys, which are their payloads as well; without a key for "".
func placedFrame(t *testing.T, env record.Envelope, keys ...string) []byte {
	t.Helper()
	env.Category = "placed"
	var b record.Builder
	if err := b.Reset(nil, env); err != nil {
		t.Fatal(err)
	}
	for _, k := range keys {
		m := &record.Message{Payload: []byte(`{"id":"` + k + `"}`)}
		if k != "" {
			m.Key = []byte(k)
		} else {
			m.Payload = nil
		}
		if err := b.Append(m); err != nil {
			t.Fatal(err)
		}
	}
	frame, err := b.Finish()
	if err != nil {
		t.Fatal(err)
	}
	return frame
}

// storedByShard are the keys that the batchers have, by shard, in order. Each frame must have the tag.
func (c *cell) storedByShard(t *testing.T, tag uint32) map[uint32][]string {
	t.Helper()
	out := map[uint32][]string{}
	for _, b := range c.batchers {
		for _, frame := range b.stored(t) {
			var (
				d record.Decoder
				r record.Record
			)
			h, err := d.Reset(frame)
			if err != nil || h.Placement != tag {
				t.Errorf("a frame with the tag %#x, want %#x: %v", h.Placement, tag, err)
			}
			for d.Next(&r) {
				out[h.Shard] = append(out[h.Shard], string(r.Key))
			}
		}
	}
	return out
}

func manyKeys() (keys []string) {
	for i := range 100 {
		keys = append(keys, fmt.Sprint("key-", i))
	}
	return keys
}

// TestPlaceFrames: messages that their writer did not place are in their shards afterwards, in order, and no frame is touched that has
// the right tag, or a former one.
func TestPlaceFrames(t *testing.T) {
	for _, by := range []scribev1.ShardBy{scribev1.ShardBy_SHARD_BY_KEY, scribev1.ShardBy_SHARD_BY_FIELD} {
		field := ""
		if by == scribev1.ShardBy_SHARD_BY_FIELD {
			field = "id"
		}
		for _, tag := range []uint32{0, placement.Unplaced, 12345} {
			c := newCell(t, config.Defaults[Config](), 2)
			l := c.placing(by, field, nil)
			keys := manyKeys()
			resp, err := c.Write(t.Context(), &scribev1.WriteRequest{Frames: slices.Concat(
				placedFrame(t, record.Envelope{Placement: tag, Sequenced: true, Producer: 7, Epoch: 1}, keys[:60]...),
				makeFrame(t, "nobody", 0, false, "x"),
				placedFrame(t, record.Envelope{Placement: tag}, keys[60:]...),
			)})
			if err != nil {
				t.Fatal(err)
			}
			if got := reasons(resp.GetResults()); !slices.Equal(got, []scribev1.Reason{0, scribev1.Reason_REASON_UNKNOWN_CATEGORY, 0}) {
				t.Fatalf("results %v", resp.GetResults())
			}
			want := map[uint32][]string{}
			for _, k := range keys {
				want[l.ShardOf([]byte(k))] = append(want[l.ShardOf([]byte(k))], k)
			}
			if got := c.storedByShard(t, l.Tag()); fmt.Sprint(got) != fmt.Sprint(want) || len(want) != 8 {
				t.Errorf("tag %#x by %v: stored %v, want %v", tag, by, got, want)
			}
		}
	}
	c := newCell(t, config.Defaults[Config](), 1)
	former, err := placement.NewLayout(placement.ByKey, "", 4)
	if err != nil {
		t.Fatal(err)
	}
	l := c.placing(scribev1.ShardBy_SHARD_BY_KEY, "", func(v *scribev1.Category) {
		v.FormerLayouts = []*scribev1.ShardLayout{{By: scribev1.ShardBy_SHARD_BY_KEY, Shards: 4}, {By: scribev1.ShardBy_SHARD_BY_STICKY, Shards: 2}}
	})
	right := [][]byte{
		placedFrame(t, record.Envelope{Placement: l.Tag(), Shard: 7}, "a", "b"),
		placedFrame(t, record.Envelope{Placement: former.Tag(), Shard: 3, Sequenced: true, Producer: 1, Epoch: 1}, "c", "d"),
		placedFrame(t, record.Envelope{Shard: 1}, "e", "f"),
	}
	c.write(right...)
	if got := c.batchers[0].stored(t); !slices.EqualFunc(got, right, slices.Equal[[]byte]) {
		t.Errorf("%d frames that were right were changed", len(got))
	}
}

// TestPlaceRefuses: what can't be placed is refused with its reason, and nothing of it is stored.
func TestPlaceRefuses(t *testing.T) {
	damaged := placedFrame(t, record.Envelope{}, manyKeys()...)
	damaged[len(damaged)-1] ^= 1
	for name, tc := range map[string]struct {
		frame  []byte
		once   bool
		reason scribev1.Reason
		text   string
	}{
		"an atomic batch of several shards": {placedFrame(t, record.Envelope{Atomic: true}, manyKeys()...), false, scribev1.Reason_REASON_INVALID, "atomic"},
		"sequences that duplicates are told by": {
			placedFrame(t, record.Envelope{Sequenced: true, Producer: 1, Epoch: 1}, "a"), true, scribev1.Reason_REASON_INVALID, "exactly_once",
		},
		"a chosen shard": {placedFrame(t, record.Envelope{Shard: 3}, "a"), false, scribev1.Reason_REASON_INVALID, "leave out the shard, 3"},
		"damage":         {damaged, false, scribev1.Reason_REASON_CORRUPT, "checksum"},
	} {
		c := newCell(t, config.Defaults[Config](), 1)
		c.placing(scribev1.ShardBy_SHARD_BY_KEY, "", func(v *scribev1.Category) {
			if tc.once {
				v.Delivery = scribev1.Delivery_DELIVERY_EXACTLY_ONCE
			}
		})
		good := makeFrame(t, "least", 0, false, "good")
		resp, err := c.Write(t.Context(), &scribev1.WriteRequest{Frames: slices.Concat(tc.frame, good)})
		if err != nil {
			t.Fatal(err)
		}
		if info := resp.GetResults()[0].GetError(); info.GetReason() != tc.reason || !strings.Contains(info.GetMessage(), tc.text) || resp.GetResults()[1].GetError() != nil {
			t.Errorf("%s: %v", name, resp.GetResults())
		}
		if n := len(c.batchers[0].stored(t)); n != 1 {
			t.Errorf("%s: %d frames are stored", name, n)
		}
	}
}

// TestPlaceFollows: frames that have to be placed follow nothing: the placed ones are others.
func TestPlaceFollows(t *testing.T) {
	c := newCell(t, config.Defaults[Config](), 1)
	c.placing(scribev1.ShardBy_SHARD_BY_KEY, "", nil)
	frame := placedFrame(t, record.Envelope{Sequenced: true, Producer: 7, Epoch: 1, FirstSequence: 5}, "a", "b")
	_, err := c.Write(t.Context(), &scribev1.WriteRequest{Frames: frame, Follows: []uint32{0}})
	if rpc.ReasonOf(err) != scribev1.Reason_REASON_OUT_OF_ORDER || len(c.batchers[0].stored(t)) > 0 {
		t.Errorf("the request ended with %v", err)
	}
}

// TestPlaceAtomic: an atomic batch whose messages belong together stays one, and a report of losses stays in its shard.
func TestPlaceAtomic(t *testing.T) {
	c := newCell(t, config.Defaults[Config](), 1)
	l := c.placing(scribev1.ShardBy_SHARD_BY_KEY, "", nil)
	report, err := loss.AppendFrame(nil, "placed", 5, 1, &loss.Report{Reason: "full", Messages: 3, By: loss.ByProducer, Run: "r", Number: 1})
	if err != nil {
		t.Fatal(err)
	}
	if got := reasons(mustWrite(t, c, placedFrame(t, record.Envelope{Atomic: true}, "a", "a"), report)); !slices.Equal(got, []scribev1.Reason{0, 0}) {
		t.Fatal(got)
	}
	want := map[uint32][]string{l.ShardOf([]byte("a")): {"a", "a"}, 5: {""}}
	if got := c.storedByShard(t, l.Tag()); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("stored %v, want %v", got, want)
	}
}

func mustWrite(t *testing.T, c *cell, frames ...[]byte) []*scribev1.FrameResult {
	t.Helper()
	resp, err := c.Write(t.Context(), &scribev1.WriteRequest{Frames: slices.Concat(frames...)})
	if err != nil {
		t.Fatal(err)
	}
	return resp.GetResults()
}

// TestPlaceRows: rows of columns are divided by the column.
func TestPlaceRows(t *testing.T) {
	c := newCell(t, config.Defaults[Config](), 1)
	l := c.placing(scribev1.ShardBy_SHARD_BY_FIELD, "id", nil)
	b := array.NewRecordBuilder(memory.DefaultAllocator, arrow.NewSchema([]arrow.Field{{Name: "id", Type: arrow.PrimitiveTypes.Int64}}, nil))
	for i := range int64(100) {
		b.Field(0).(*array.Int64Builder).Append(i)
	}
	body, err := columnar.EncodeIPC(nil, b.NewRecordBatch())
	if err != nil {
		t.Fatal(err)
	}
	frame, err := record.AppendArrowFrame(nil, record.Envelope{Category: "placed"}, 100, body)
	if err != nil {
		t.Fatal(err)
	}
	if got := reasons(mustWrite(t, c, frame)); !slices.Equal(got, []scribev1.Reason{0}) {
		t.Fatal(got)
	}
	rows := 0
	for _, frame := range c.batchers[0].stored(t) {
		h, err := record.Check(frame)
		if err != nil || h.Placement != l.Tag() {
			t.Fatalf("%+v, %v", h, err)
		}
		batch, err := columnar.DecodeIPC(frame[h.BodyOffset():])
		if err != nil {
			t.Fatal(err)
		}
		for i := range int(batch.NumRows()) {
			if id := batch.Column(0).(*array.Int64).Value(i); l.ShardOf(fmt.Append(nil, id)) != h.Shard {
				t.Errorf("row %d is in shard %d", id, h.Shard)
			}
			rows++
		}
	}
	if rows != 100 {
		t.Errorf("%d rows", rows)
	}
}

// TestPartlyStored: a frame of which a part was stored and a part was not has an unknown outcome.
func TestPartlyStored(t *testing.T) {
	c := newCell(t, config.Defaults[Config](), 1)
	c.placing(scribev1.ShardBy_SHARD_BY_KEY, "", nil)
	c.batchers[0].answer = func(_ int, frames [][]byte) (*scribev1.SubmitResponse, error) {
		resp := &scribev1.SubmitResponse{}
		for i := range frames {
			r := &scribev1.FrameResult{}
			if i == 1 {
				r.Error = rpc.Info(rpc.Errorf(scribev1.Reason_REASON_TOO_LARGE, "refused"))
			}
			resp.Results = append(resp.Results, r)
		}
		return resp, nil
	}
	if got := reasons(mustWrite(t, c, placedFrame(t, record.Envelope{}, manyKeys()...))); !slices.Equal(got, []scribev1.Reason{scribev1.Reason_REASON_UNKNOWN_OUTCOME}) {
		t.Errorf("reasons %v", got)
	}
}

// TestPublishPlaces: messages over plain HTTP are placed by their category, whatever that says.
func TestPublishPlaces(t *testing.T) {
	for by, want := range map[scribev1.ShardBy]int{
		scribev1.ShardBy_SHARD_BY_KEY: 8, scribev1.ShardBy_SHARD_BY_STICKY: 8, scribev1.ShardBy_SHARD_BY_EXPLICIT: 1, scribev1.ShardBy_SHARD_BY_UNSPECIFIED: 1,
	} {
		c := newCell(t, config.Defaults[Config](), 1)
		c.placing(by, "", nil)
		for i := range 50 {
			key := fmt.Append(nil, "key-", i)
			if _, err := c.Publish(t.Context(), &scribev1.PublishRequest{Category: "placed", Messages: []*scribev1.PublishMessage{{Key: key}}}); err != nil {
				t.Fatal(err)
			}
		}
		shards := map[uint32]bool{}
		for _, frame := range c.batchers[0].stored(t) {
			h, err := record.Check(frame)
			if err != nil || h.Placement == placement.Unplaced {
				t.Fatalf("%+v, %v", h, err)
			}
			shards[h.Shard] = true
		}
		if len(shards) != want {
			t.Errorf("%v: %d shards, want %d", by, len(shards), want)
		}
	}
}
