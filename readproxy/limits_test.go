package readproxy

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"scribe/internal/format/pointer"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// limited has the category a with a quota for reading, and b without.
type limited struct{ cat *scribev1.Category }

func (l limited) Lookup(name string) (*scribev1.Category, bool) {
	if name == "a" {
		return l.cat, true
	}
	return categories{"a", "b"}.Lookup(name)
}

func (l limited) Resolve(ctx context.Context, name string) (*scribev1.Category, error) {
	return categories{}.Resolve(ctx, name)
}

const (
	block    = scribev1.QuotaMode_QUOTA_MODE_BLOCK
	throttle = scribev1.QuotaMode_QUOTA_MODE_THROTTLE
	sample   = scribev1.QuotaMode_QUOTA_MODE_SAMPLE
)

// limit returns a server whose category a has a quota, n payloads of it, and the bytes of one.
func limit(t *testing.T, n int, quota *scribev1.Category) (h *harness, encoded [][]byte, size uint64) {
	t.Helper()
	quota.Name, quota.Id, quota.Shards = "a", 1, 1
	h = newHarnessWith(t, func(d *Deps) { d.Categories = limited{quota} })
	var blocks [][]payload
	for range n {
		blocks = append(blocks, []payload{newPayload(t, "a", 10)})
	}
	encoded, pointers := h.put(pointer.CodecNone, blocks...)
	size = uint64(pointers[0].Length)
	if quota.ReadQuotaBytesPerSecond > 0 {
		quota.ReadQuotaBytesPerSecond *= size // it is given in payloads
	}
	return h, encoded, size
}

func (h *harness) fetchA(accepts bool, pointers ...[]byte) ([]*scribev1.Payload, error) {
	res, err := h.server.Fetch(h.t.Context(), &scribev1.FetchRequest{Pointers: pointers, Encoding: raw, Category: "a", AcceptsSamples: accepts})
	return res.GetPayloads(), err
}

// TestReadQuotaBlocks: an answer ends where the quota does, a request beyond it is refused with the time when it passes, and nothing is
// read from the store for what is refused.
func TestReadQuotaBlocks(t *testing.T) {
	for _, mode := range []scribev1.QuotaMode{block, sample} { // who does not accept samples is blocked
		synctest.Test(t, func(t *testing.T) {
			h, enc, size := limit(t, 10, &scribev1.Category{ReadQuotaBytesPerSecond: 4, ReadQuotaMode: mode})
			got, err := h.fetchA(false, enc...)
			if err != nil || len(got) != 4 {
				t.Fatalf("%d payloads, %v", len(got), err)
			}
			for _, p := range got {
				if _, err := open(p); err != nil {
					t.Error(err)
				}
			}
			if n := h.metric("store_blocks_total"); n != 4 {
				t.Errorf("%v blocks were read", n)
			}
			_, err = h.fetchA(false, enc[4:]...)
			if info := rpc.Info(err); info.GetReason() != scribev1.Reason_REASON_OVERLOADED || info.GetRetryAfter().AsDuration() <= 0 || info.GetRetryAfter().AsDuration() > time.Second {
				t.Fatalf("beyond the quota: %v", err)
			}
			if n := h.metric("over_quota_bytes_total", "refused"); n != float64(12*size) {
				t.Errorf("%v bytes are counted as refused, want those of 12 payloads of %d", n, size)
			}
			enc, _ = h.put(pointer.CodecNone, []payload{newPayload(t, "b", 10)})
			if p := h.fetch(raw, "b", enc[0]); p[0].GetError() != nil {
				t.Errorf("another category: %v", p[0].GetError())
			}
		})
	}
}

// TestReadQuotaThrottles: requests wait for their turn, and who would wait too long is refused at once.
func TestReadQuotaThrottles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, enc, _ := limit(t, 8, &scribev1.Category{ReadQuotaBytesPerSecond: 2, ReadQuotaMode: throttle})
		begin := time.Now()
		for i := range 4 { // the burst, and then a second for each two
			if got, err := h.fetchA(false, enc[2*i:2*i+2]...); err != nil || len(got) != 2 {
				t.Fatalf("%d payloads, %v", len(got), err)
			}
		}
		if d := time.Since(begin).Round(10 * time.Millisecond); d != 2*time.Second && d != 3*time.Second {
			t.Errorf("eight payloads took %v", d)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		_, err := h.server.Fetch(ctx, &scribev1.FetchRequest{Pointers: slices.Concat(enc, enc), Encoding: raw, Category: "a"})
		if rpc.ReasonOf(err) != scribev1.Reason_REASON_OVERLOADED {
			t.Errorf("without time to wait: %v", err)
		}
		if h.metric("over_quota_bytes_total", "delayed") == 0 {
			t.Error("nothing is counted as delayed")
		}
	})
}

// TestReadQuotaSamples: readers that accept it get one payload in N, with N, and no block is read for the others.
func TestReadQuotaSamples(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, enc, _ := limit(t, 10, &scribev1.Category{ReadQuotaBytesPerSecond: 20, ReadQuotaMode: sample})
		kept, out, estimate := 0, 0, 0
		for range 400 { // 400 payloads a second
			got, err := h.fetchA(true, enc...)
			if err != nil || len(got) != len(enc) {
				t.Fatalf("%d payloads, %v", len(got), err)
			}
			for _, p := range got {
				if p.GetSampledOut() {
					if out++; len(p.GetData()) > 0 || p.GetError() != nil {
						t.Fatalf("left out with %v", p)
					}
					continue
				}
				if _, err := open(p); err != nil {
					t.Fatal(err)
				}
				kept++
				estimate += int(max(p.GetSampleRate(), 1))
			}
			<-time.After(25 * time.Millisecond)
		}
		if kept+out != 4000 || kept < 150 || kept > 320 {
			t.Errorf("%d payloads kept, %d left out", kept, out)
		}
		if estimate < 3600 || estimate > 4400 {
			t.Errorf("the rates tell of %d payloads, 4000 were asked for", estimate)
		}
	})
}

// TestReadQuotaNeverSamplesExactlyOnce: a category that says so blocks.
func TestReadQuotaNeverSamplesExactlyOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, enc, _ := limit(t, 4, &scribev1.Category{ReadQuotaBytesPerSecond: 1, ReadQuotaMode: sample, Delivery: scribev1.Delivery_DELIVERY_EXACTLY_ONCE})
		if got, err := h.fetchA(true, enc...); err != nil || len(got) != 1 || got[0].GetSampleRate() > 1 {
			t.Errorf("%d payloads, %v", len(got), err)
		}
	})
}

// TestReadQuotaOfRequests: requests are limited whatever they ask for, in every mode, and those of other regions' read proxies are not.
func TestReadQuotaOfRequests(t *testing.T) {
	for _, mode := range []scribev1.QuotaMode{block, sample} {
		synctest.Test(t, func(t *testing.T) {
			h, enc, _ := limit(t, 2, &scribev1.Category{ReadQuotaRequestsPerSecond: 3, ReadQuotaMode: mode})
			n := 0
			for range 10 {
				if _, err := h.fetchA(true, enc...); err == nil {
					n++
				}
			}
			if n != 3 {
				t.Errorf("%d requests passed at once", n)
			}
			_, err := h.server.Fetch(t.Context(), &scribev1.FetchRequest{Pointers: enc, Encoding: blockEncoding, Category: "a", Peer: true})
			if err != nil {
				t.Errorf("of another region: %v", err)
			}
		})
	}
}
