package writeproxy

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"scribe/internal/base/config"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// BenchmarkWrite is what the proxy adds to a request of 1 MiB: one checksum, and a copy when there are several batchers.
//
//	go test ./writeproxy -run '^$' -bench Write -benchtime 1s -count 6
func BenchmarkWrite(b *testing.B) {
	for _, batchers := range []int{1, 8} {
		for _, size := range []int{1 << 10, 64 << 10} {
			b.Run(fmt.Sprintf("batchers=%d/frame=%dKiB", batchers, size>>10), func(b *testing.B) {
				var snapshot []Batcher
				for i := range batchers {
					snapshot = append(snapshot, Batcher{ID: fmt.Sprint(i), Service: taking{}})
				}
				p, err := New(config.Defaults[Config](), Deps{Categories: newCatalog(), Batchers: func() []Batcher { return snapshot }})
				if err != nil {
					b.Fatal(err)
				}
				var frames [][]byte
				for i := range (1 << 20) / size {
					frames = append(frames, makeFrame(b, "least", uint32(i%64), false, strings.Repeat("x", size-100)))
				}
				req := &scribev1.WriteRequest{Frames: slices.Concat(frames...)}
				b.SetBytes(int64(len(req.GetFrames())))
				b.ReportAllocs()
				for b.Loop() {
					if _, err := p.Write(b.Context(), req); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// BenchmarkOverQuota is what a request of 1 MiB costs that is over its quota, by mode: refused by the headers of its frames (a body
// is never looked at), or sampled at about 1 in 1000. pass is the same request without a quota.
//
//	go test ./writeproxy -run '^$' -bench OverQuota -benchtime 1s -count 6
func BenchmarkOverQuota(b *testing.B) {
	for name, mode := range map[string]scribev1.QuotaMode{
		"pass": scribev1.QuotaMode_QUOTA_MODE_UNSPECIFIED, "block": scribev1.QuotaMode_QUOTA_MODE_BLOCK, "sample": scribev1.QuotaMode_QUOTA_MODE_SAMPLE,
	} {
		for _, size := range []int{1 << 10, 64 << 10} {
			b.Run(fmt.Sprintf("%s/frame=%dKiB", name, size>>10), func(b *testing.B) {
				c := newCatalog()
				c.limit("noisy", map[bool]uint64{true: 1 << 20}[name != "pass"], mode)
				snapshot := []Batcher{{ID: "a", Service: taking{}}, {ID: "b", Service: taking{}}}
				p, err := New(config.Defaults[Config](), Deps{Categories: c, Batchers: func() []Batcher { return snapshot }})
				if err != nil {
					b.Fatal(err)
				}
				frame := makeFrame(b, "noisy", 0, false, strings.Repeat("x", size-100))
				req := &scribev1.WriteRequest{Frames: slices.Concat(slices.Repeat([][]byte{frame}, (1<<20)/size)...)}
				b.SetBytes(int64(len(req.GetFrames())))
				b.ReportAllocs()
				for b.Loop() {
					if _, err := p.Write(b.Context(), req); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// BenchmarkCategories is a small request of each of many categories with quotas, from all processors at once: what they share must
// not make them wait for each other. Compare -cpu 1 with -cpu 2.
//
//	go test ./writeproxy -run '^$' -bench Categories -cpu 1,2 -count 6
func BenchmarkCategories(b *testing.B) {
	const categories = 1000
	c := newCatalog()
	var reqs []*scribev1.WriteRequest
	for i := range categories {
		name := fmt.Sprintf("c%d", i)
		c.limit(name, 1<<40, scribev1.QuotaMode_QUOTA_MODE_BLOCK)
		reqs = append(reqs, &scribev1.WriteRequest{Frames: makeFrame(b, name, 0, false, "message")})
	}
	snapshot := []Batcher{{ID: "a", Service: taking{}}, {ID: "b", Service: taking{}}}
	p, err := New(config.Defaults[Config](), Deps{Categories: frozen(c.view), Batchers: func() []Batcher { return snapshot }})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for i := 0; pb.Next(); i++ {
			if _, err := p.Write(b.Context(), reqs[i%categories]); err != nil {
				b.Error(err)
			}
		}
	})
}

// frozen are categories that nobody changes, without a lock of the test's own.
type frozen map[string]*scribev1.Category

func (f frozen) Lookup(name string) (*scribev1.Category, bool) { c, ok := f[name]; return c, ok }

func (f frozen) LookupBytes(name []byte) (*scribev1.Category, bool) {
	c, ok := f[string(name)]
	return c, ok
}

func (f frozen) Resolve(context.Context, string) (*scribev1.Category, error) {
	return nil, rpc.Errorf(scribev1.Reason_REASON_UNKNOWN_CATEGORY, "frozen")
}
