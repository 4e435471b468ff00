package app

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"scribe/columnar"
	"scribe/internal/role/publish"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// TestLearnedPruning reads a category by a query twice: what was learned the first time spares payloads the second time, and the rows are
// the same.
func TestLearnedPruning(t *testing.T) {
	for _, wiring := range []Wiring{Direct, InMemory} {
		a, err := start(t, wiring, nil)
		if err != nil {
			t.Fatal(err)
		}
		const payloads = 20
		writeStatuses(t, a, payloads)
		q := &scribev1.Query{Text: "SELECT status, n FROM access WHERE status = 404", SchemaVersion: 1, Now: time.Now().UnixMicro()}
		first, entries, skips := readQuery(t, a, q)
		if entries+skips != payloads || skips != 0 {
			t.Fatalf("%d pointers came and %d were left out of a category that nobody has read", entries, skips)
		}
		views := rpc.NewViewClient(a.transport, a.URL())
		for deadline := time.Now().Add(time.Minute); ; {
			res, err := views.Views(t.Context(), &scribev1.ViewsRequest{Category: "access"})
			if err != nil {
				t.Fatal(err)
			}
			if res.GetZonesWritten() == payloads {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("%d zone maps were written", res.GetZonesWritten())
			}
		}
		second, entries, skips := readQuery(t, a, q)
		if entries+skips != payloads || skips != payloads-2 {
			t.Errorf("%d pointers came, %d were left out", entries, skips)
		}
		if !slices.Equal(first, second) || len(first) != 2 {
			t.Errorf("first %v, then %v", first, second)
		}
		stopNow(t, a)
	}
}

// writeStatuses makes a category with a schema and writes payloads to it, each of one message; of every ten one has the status 404.
func writeStatuses(t *testing.T, a *App, payloads int) {
	t.Helper()
	_, err := a.parts.control.CreateCategory(t.Context(), &scribev1.CreateCategoryRequest{Category: &scribev1.Category{
		Name: "access", Schema: "format: json\nfields:\n  - {name: status, type: int32}\n  - {name: n, type: int64}\n",
	}})
	if err != nil {
		t.Fatal(err)
	}
	for i := range payloads {
		status := 200 + i%3
		if i%10 == 7 {
			status = 404
		}
		f, err := publish.Frame(&scribev1.PublishRequest{Category: "access", Messages: []*scribev1.PublishMessage{
			{Content: &scribev1.PublishMessage_Text{Text: fmt.Sprintf(`{"status":%d,"n":%d}`, status, i)}},
		}}, publish.MaxBytes, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := a.parts.write.Write(t.Context(), &scribev1.WriteRequest{Frames: f, Ack: scribev1.AckLevel_ACK_LEVEL_COMMITTED}); err != nil {
			t.Fatal(err)
		}
	}
}

var errEnough = errors.New("enough")

// readQuery reads a category from its beginning to its end by a query, over HTTP: pointers, then payloads in a view. It returns the rows.
func readQuery(t *testing.T, a *App, q *scribev1.Query) (rows []string, entries, skips int) {
	t.Helper()
	end, at := map[uint64]uint64{}, map[uint64]uint64{}
	var got []*scribev1.StreamEntry
	sent := false
	err := rpc.NewReadStreamClient(a.transport, a.URL()).Stream(t.Context(), func(ctx context.Context) (*scribev1.StreamRequest, error) {
		if sent {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		sent = true
		return &scribev1.StreamRequest{Step: &scribev1.StreamRequest_Start{Start: &scribev1.StreamStart{
			Category: "access", StartAt: scribev1.StartAt_START_AT_EARLIEST, Filter: q, Credits: &scribev1.StreamCredits{Pointers: 1000, Bytes: 1 << 30},
		}}}, nil
	}, func(res *scribev1.StreamResponse) error {
		for _, s := range res.GetOpened().GetShards() {
			end[s.GetShard()], at[s.GetShard()] = s.GetNextLsn(), s.GetLsn()
		}
		for _, e := range res.GetEntries().GetEntries() {
			got = append(got, e)
			at[e.GetShard()] = e.GetLsn() + 1
		}
		for _, s := range res.GetEntries().GetSkipped() {
			skips += int(s.GetMessages()) // one a payload
			at[s.GetShard()] = max(at[s.GetShard()], s.GetTo())
		}
		for shard, lsn := range end {
			if at[shard] < lsn {
				return nil
			}
		}
		return errEnough
	})
	if !errors.Is(err, errEnough) {
		t.Fatal(err)
	}
	proxy := rpc.NewReadProxyClient(a.transport, a.URL())
	for _, e := range got {
		res, err := proxy.Fetch(t.Context(), &scribev1.FetchRequest{
			Pointers: [][]byte{e.GetPointer()}, Category: "access", Encoding: scribev1.PayloadEncoding_PAYLOAD_ENCODING_ARROW,
			View: &scribev1.View{Query: q}, Places: []*scribev1.PointerPlace{{Shard: e.GetShard(), Lsn: e.GetLsn()}},
		})
		if err != nil {
			t.Fatal(err)
		}
		p := res.GetPayloads()[0]
		if p.GetError() != nil || !p.GetView().GetExact() {
			t.Fatal(p.GetError(), p.GetView())
		}
		batch, err := columnar.DecodeIPC(p.GetData())
		if err != nil {
			t.Fatal(err)
		}
		for i := range int(batch.NumRows()) {
			rows = append(rows, batch.Column(batch.Schema().FieldIndices("n")[0]).ValueStr(i))
		}
		batch.Release()
	}
	slices.Sort(rows)
	return rows, len(got), skips
}
