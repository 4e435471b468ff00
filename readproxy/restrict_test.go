package readproxy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"scribe/columnar"
	"scribe/internal/format/pointer"
	"scribe/internal/format/record"
	"scribe/internal/role/restrict"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/readproxy/memcached/memcachedtest"
	"scribe/storage/blob/encryption/encryptiontest"
)

// limitedTo is a call of a reader with limits.
func limitedTo(t testing.TB, limits ...string) context.Context {
	t.Helper()
	list := make([]restrict.Limit, len(limits))
	for i, text := range limits {
		var err error
		if list[i], err = restrict.ParseLimit(text); err != nil {
			t.Fatal(err)
		}
	}
	return restrict.NewContext(t.Context(), restrict.New(list...))
}

// unseen is what no reader with the limits of these tests may get.
var unseen = []string{"/secret", "host-1", "host-2", "host-3", "40404"}

func wantUnseen(t testing.TB, what string, sent []byte) {
	t.Helper()
	for _, text := range unseen {
		if bytes.Contains(sent, []byte(text)) {
			t.Errorf("%s has %q: %q", what, text, sent)
		}
	}
}

// requestRows are rows of which those with status 200 may be seen, without their hosts.
func requestRows(t testing.TB) payload {
	t.Helper()
	return rows(t, `{"status":200,"path":"/a","bytes":11,"host":"host-1","id":"x"}`, `{"status":404,"path":"/secret","bytes":40404,"host":"host-2"}`, `{"status":200,"path":"/b","host":"host-3"}`)
}

const statusOnly = "where status = 200 mask host"

// TestRestrictedPayloads: of payloads that are whole blocks, and of those that share one, compressed or not, encrypted or not, a reader with limits gets what these show, in each encoding
// and by views, from the store and from memory; and neither it nor others get what was made for the other. Nothing that was made for it leaves the process.
func TestRestrictedPayloads(t *testing.T) {
	const want = "{\"status\":200,\"path\":\"/a\",\"bytes\":11}|{\"status\":200,\"path\":\"/b\"}"
	for _, codec := range []pointer.Codec{pointer.CodecNone, pointer.CodecZstd} {
		for _, encrypted := range []bool{false, true} {
			what := fmt.Sprintf("%v, encrypted %t", codec, encrypted)
			cache := memcachedtest.Start(t)
			v := newViewHarness(t, withMemcached(cache))
			if encrypted {
				v.encrypt(t, encryptiontest.KeyFile(t, "test"))
			}
			other := rows(t, `{"status":404,"path":"/secret","host":"host-2"}`)
			enc, _ := v.put(codec, []payload{requestRows(t)}, []payload{other, requestRows(t)})
			mine := [][]byte{enc[0], enc[2]}
			limited := limitedTo(t, statusOnly)
			for range 3 { // made, kept and asked for again, between readers who see all
				for _, encoding := range []scribev1.PayloadEncoding{raw, json, arrowIPC} {
					res, err := v.server.Fetch(limited, &scribev1.FetchRequest{Pointers: mine, Encoding: encoding, Category: "a"})
					if err != nil || len(res.GetPayloads()) != 2 {
						t.Fatalf("%s: %v, %v", what, res, err)
					}
					for _, p := range res.GetPayloads() {
						if p.GetError() != nil || p.GetRestricted().GetMessages() != 2 || p.GetRestricted().GetSchemaVersion() != 1 {
							t.Errorf("%s in encoding %v: %v, %v", what, encoding, p.GetError(), p.GetRestricted())
						}
						wantUnseen(t, what, p.GetData())
						if encoding == raw {
							if got := payloadTexts(t, p.GetData()); got != want {
								t.Errorf("%s: %s", what, got)
							}
						}
					}
				}
				for i, p := range v.fetch(raw, "a", mine...) {
					good(t, p, requestRows(t))
					if p.GetRestricted() != nil {
						t.Errorf("%s: payload %d of who sees all is restricted", what, i)
					}
				}
				const query = "SELECT path, host FROM a WHERE status > 100"
				req := v.request(query, mine...)
				req.Places = []*scribev1.PointerPlace{{Shard: uint64(testShard), Lsn: 1}, {Shard: uint64(testShard), Lsn: 2}}
				res, err := v.server.Fetch(limited, proto.CloneOf(req))
				if err != nil {
					t.Fatal(err)
				}
				for _, p := range res.GetPayloads() {
					wantUnseen(t, what+", a view", unpack(t, p))
					if got := v.finish(t, query, p); len(got) != 2 || p.GetView().GetExact() || p.GetView().GetRows() != 2 || p.GetRestricted().GetMessages() != 2 {
						t.Errorf("%s: a view of %v, %v, %v", what, got, p.GetView(), p.GetRestricted())
					}
				}
				if v.notes.get(1) != nil {
					t.Fatalf("%s: a zone map was made for a reader with limits", what)
				}
				for _, p := range v.ask(t, query, mine...) {
					if got := v.finish(t, query, p); len(got) != 3 || p.GetRestricted() != nil {
						t.Errorf("%s: who sees all gets %v", what, got)
					}
				}
				// Other limits have other views.
				if res, err = v.server.Fetch(limitedTo(t, "where status = 404 hide host, bytes"), v.request("SELECT path FROM a WHERE status > 100", mine...)); err != nil || res.GetPayloads()[0].GetView().GetRows() != 1 {
					t.Errorf("%s: other limits: %v, %v", what, res, err)
				}
			}
			views := map[bool]float64{true: 0, false: 2}[encrypted] // of who sees all
			v.eventually(func() bool { return v.metric("memcached_fills_total", "stored") == 2+views })
			closeServer(t, v)
			if n := v.metric("memcached_fills_total"); n != 2+views {
				t.Errorf("%s: %v values are in memcached, want two blocks and %v views", what, n, views)
			}
			if v.metric("restricted_payloads_total") == 0 || v.metric("rows_held_back_total") == 0 {
				t.Errorf("%s: nothing is counted", what)
			}
		}
	}
}

// payloadTexts are the messages of frames.
func payloadTexts(t testing.TB, frames []byte) string {
	t.Helper()
	var texts []string
	for f, err := range record.Split(frames) {
		if err != nil {
			t.Fatal(err)
		}
		var (
			d record.Decoder
			r record.Record
		)
		if _, err := d.Reset(f.Bytes); err != nil {
			t.Fatal(err)
		}
		for d.Next(&r) {
			texts = append(texts, string(r.Payload))
		}
	}
	return strings.Join(texts, "|")
}

// changing is category "a", whose schema this server has in an old version.
type changing struct {
	schemed
	newest *scribev1.Category
	asked  int
}

func (c *changing) Resolve(context.Context, string) (*scribev1.Category, error) {
	c.asked++
	if c.newest == nil {
		return nil, errors.New("the control plane is away")
	}
	return c.newest, nil
}

// TestRestrictedRefusals: a reader with limits is refused whole blocks, columns that it does not have, and whatever this server can't apply its limits to, in words that do not tell.
func TestRestrictedRefusals(t *testing.T) {
	v := newViewHarness(t)
	enc, pointers := v.put(pointer.CodecNone, []payload{requestRows(t)})
	hides := limitedTo(t, "where status = 200 hide host")
	for name, req := range map[string]*scribev1.FetchRequest{
		"a whole block":          {Pointers: enc, Category: "a", Encoding: blockEncoding},
		"as another region":      {Pointers: enc, Category: "a", Peer: true},
		"a hidden column":        v.request("SELECT host FROM a", enc...),
		"a hidden column's name": v.request("SELECT hots FROM a", enc...),
		"an order by it":         v.request("SELECT path FROM a ORDER BY host", enc...),
	} {
		res, err := v.server.Fetch(hides, req)
		if err == nil || strings.Contains(err.Error(), "meant") || strings.Contains(err.Error(), `"host"?`) {
			t.Errorf("%s: %v, %v", name, res, err)
		}
	}
	_, err := v.server.Fetch(limitedTo(t, "mask iban"), &scribev1.FetchRequest{Pointers: enc, Category: "a"})
	if rpc.ReasonOf(err) != scribev1.Reason_REASON_DENIED || strings.Contains(err.Error(), "iban") {
		t.Errorf("a column that is gone: %v", err)
	}
	// A limit that was made of no rule, as when the right has ended, serves nothing.
	if _, err := v.server.Fetch(restrict.NewContext(t.Context(), restrict.Nothing()), &scribev1.FetchRequest{Pointers: enc, Category: "a"}); rpc.ReasonOf(err) != scribev1.Reason_REASON_DENIED {
		t.Errorf("nothing: %v", err)
	}

	// Damage is told, how it is damaged is not: the checksum of the block is of all that it has.
	damaged := pointers[0]
	damaged.BlockCRC ^= 1
	for _, encoding := range []scribev1.PayloadEncoding{raw, json} {
		res, err := v.server.Fetch(hides, &scribev1.FetchRequest{Pointers: [][]byte{pointer.Append(nil, &damaged)}, Category: "a", Encoding: encoding})
		if err != nil {
			t.Fatal(err)
		}
		info := res.GetPayloads()[0].GetError()
		if text := fmt.Sprintf("%#08x", pointers[0].BlockCRC); info.GetReason() != scribev1.Reason_REASON_CORRUPT || strings.Contains(info.GetMessage(), text) || strings.Contains(info.GetMessage(), "want") {
			t.Errorf("a damaged block: %v", info)
		}
	}
	wantReason(t, v.fetch(raw, "a", pointer.Append(nil, &damaged))[0], scribev1.Reason_REASON_CORRUPT)
	res, err := v.server.Fetch(hides, v.request("SELECT path FROM a", pointer.Append(nil, &damaged)))
	if err != nil || strings.Contains(res.GetPayloads()[0].GetError().GetMessage(), "computed") {
		t.Errorf("a view of a damaged block: %v, %v", res, err)
	}
}

// TestRestrictedOldSchema: a server whose copy of the schema is old asks once before it refuses, and does not serve under an older schema than the reader's stream had.
func TestRestrictedOldSchema(t *testing.T) {
	old := newSchemed(t, "format: json\nfields:\n  - {name: status, type: int32}\n  - {name: path, type: string}\n")
	both := newSchemed(t, "format: json\nfields:\n  - {name: status, type: int32}\n  - {name: path, type: string}\n", accessSchema)
	newest, _ := both.Lookup("a")
	cats := &changing{schemed: old, newest: newest}
	h := newHarnessWith(t, func(d *Deps) { d.Categories = cats })
	enc, _ := h.put(pointer.CodecNone, []payload{requestRows(t)})
	fetch := func(ctx context.Context, least uint32) (*scribev1.Payload, error) {
		res, err := h.server.Fetch(restrict.NewContext(ctx, restrict.FromContext(ctx).Over(least)), &scribev1.FetchRequest{Pointers: enc, Category: "a"})
		if err != nil {
			return nil, err
		}
		return res.GetPayloads()[0], nil
	}
	p, err := fetch(limitedTo(t, statusOnly), 0)
	if err != nil || cats.asked != 1 || p.GetRestricted().GetSchemaVersion() != 2 {
		t.Errorf("a column that is new: asked %d times, %v, %v", cats.asked, p.GetRestricted(), err)
	}
	wantUnseen(t, "the payload", p.GetData())
	if p, err = fetch(limitedTo(t, "mask path"), 2); err != nil || cats.asked != 2 || p.GetRestricted().GetSchemaVersion() != 2 {
		t.Errorf("a version that is new: asked %d times, %v, %v", cats.asked, p.GetRestricted(), err)
	}
	if _, err = fetch(limitedTo(t, "mask path"), 3); rpc.ReasonOf(err) != scribev1.Reason_REASON_NO_BACKEND {
		t.Errorf("a version that is not there yet: %v", err)
	}
	if p, err = fetch(limitedTo(t, "mask path"), 1); err != nil || cats.asked != 3 || p.GetRestricted().GetSchemaVersion() != 1 {
		t.Errorf("what is known here: asked %d times, %v", cats.asked, err)
	}
	cats.newest = nil
	if _, err = fetch(limitedTo(t, statusOnly), 0); err == nil {
		t.Error("served without knowing the column")
	}
}

// TestRestrictedMemory: what is made for readers with limits is charged, bounded, and refused rather than made too large; as many make some at a time as views are made.
func TestRestrictedMemory(t *testing.T) {
	v := newViewHarness(t)
	enc, _ := v.put(pointer.CodecNone, []payload{requestRows(t)})
	req := &scribev1.FetchRequest{Pointers: enc, Category: "a"}
	cat, _ := v.server.deps.Categories.Lookup("a")
	limits, _, err := v.server.limitsOf(limitedTo(t, statusOnly), raw, cat, req)
	if err != nil {
		t.Fatal(err)
	}
	free, charged := newAnswer(v.server, raw, cat, req, nil, nil), newAnswer(v.server, raw, cat, req, nil, limits.table)
	if p := &charged.items[0].pointer; charged.cost != free.cost+restrictedBytes(p) || restrictedBytes(p) < 2*int64(p.Length) {
		t.Errorf("a request is charged %d bytes, one without limits %d", charged.cost, free.cost)
	}
	if err := v.server.loadBlocks(t.Context(), charged); err != nil {
		t.Fatal(err)
	}
	slots := v.server.views.slots
	for range cap(slots) {
		slots <- struct{}{}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if res := charged.buildResponse(ctx); res.GetPayloads()[0].GetError() == nil {
		t.Error("a payload is made anew while others have all places")
	}
	for range cap(slots) {
		<-slots
	}
	if res := charged.buildResponse(t.Context()); res.GetPayloads()[0].GetError() != nil || charged.own != int64(cap(res.GetPayloads()[0].GetData())) || len(slots) != 0 {
		t.Errorf("%v, charged %d", res.GetPayloads()[0].GetError(), charged.own)
	}
	refused := charged.limitError(&charged.items[0].pointer, fmt.Errorf("a message: %w", columnar.ErrTooLarge))
	if rpc.ReasonOf(refused) != scribev1.Reason_REASON_TOO_LARGE || !strings.Contains(refused.Error(), "query fewer columns") {
		t.Errorf("what would be too large: %v", refused)
	}
}
