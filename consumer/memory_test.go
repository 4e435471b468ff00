package consumer_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"unsafe"

	"scribe/consumer"
	"scribe/internal/format/pointer"
	"scribe/internal/format/record"
	"scribe/internal/testkit/sample"
	scribev1 "scribe/proto/scribe/v1"
)

// heap measures the memory that is in use beyond what was at the start.
type heap struct {
	mu         sync.Mutex
	base, most int64
}

func inUse() int64 {
	runtime.GC()
	runtime.GC() // what was pooled is gone only then
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func (h *heap) measure() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.most = max(h.most, inUse()-h.base)
}

// decoderMemory is what a consumer's decompression takes beside the bound: some 130 KiB for each that runs.
const decoderMemory = 4 * 256 << 10

// Whatever waits, in whatever form, is within the one bound: the answers of fetches while they arrive, decompressed payloads, and
// pointers. The rest of the test's memory is in the base.
func TestMemoryIsBounded(t *testing.T) {
	noise := make([]byte, 200<<10) // does not compress
	rng := rand.NewChaCha8([32]byte{1})
	_, _ = rng.Read(noise) // never fails
	many := make([]pointer.Sequence, 1500)
	for i := range many {
		many[i] = pointer.Sequence{Producer: uint64(i) << 30, Epoch: 1, First: 1, Last: 2}
	}
	for name, c := range map[string]struct {
		payloads, bound int
		texts           func(i int) []string
		sequences       []pointer.Sequence
		// least is how much of the bound is used at times: a bound that keeps everything out would be no good.
		least float64
	}{
		"text": {payloads: 60, bound: 8 << 20, least: 0.5, texts: func(i int) []string {
			return strings.SplitAfter(string(sample.AccessLog()[i*10_000:i*10_000+500_000]), "\n")
		}},
		"noise":     {payloads: 100, bound: 4 << 20, least: 0.5, texts: func(i int) []string { return []string{fmt.Sprint(i), string(noise)} }},
		"large":     {payloads: 5, bound: 64 << 10, texts: func(i int) []string { return []string{fmt.Sprint(i), string(noise)} }},
		"tiny":      {payloads: 3000, bound: 4 << 20, texts: func(i int) []string { return []string{fmt.Sprint(i)} }},
		"sequences": {payloads: 1000, bound: 2 << 20, sequences: many, texts: func(i int) []string { return []string{fmt.Sprint(i)} }},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cl := newCell()
				cl.sequences = c.sequences
				cl.perMessage = 100
				largest, messages := 0, 0
				for i := range c.payloads {
					texts := c.texts(i)
					messages += len(texts)
					f := frame(0, texts...)
					largest = max(largest, len(f))
					cl.addFrames(shardID(0, 1), f)
				}
				h := &heap{}
				cl.onFetch = func(n int, _ *scribev1.FetchRequest, _ *scribev1.FetchResponse) error {
					// The answer is there, and not taken yet. What is allocated during a collection counts as used, so this is not for
					// streams that bring much that is not kept.
					if n%8 == 0 && c.sequences == nil {
						h.measure()
					}
					return nil
				}
				r := open(t, cl, consumer.WithUntilEnd(), consumer.WithPrefetchBytes(int64(c.bound)))
				h.base = inUse()
				n := 0
				for _, err := range r.Records(t.Context()) {
					if err != nil {
						t.Fatal(err)
					}
					if n++; n%max(messages/8, 1) == 1 {
						synctest.Wait() // as far ahead as it may be
						h.measure()
					}
				}
				// A payload that is larger than the bound is there twice: as it came, and decompressed.
				bound := int64(max(c.bound, 5*largest/2)) + decoderMemory
				t.Logf("%d bytes of %d at most", h.most, bound)
				if n != messages || h.most > bound || float64(h.most) < c.least*float64(c.bound) {
					t.Errorf("%d of %d messages, %d bytes at most, want %d", n, messages, h.most, bound)
				}
			})
		})
	}
}

// A message's bytes are those of the decompressed payload: neither copied nor allocated for.
func TestNothingIsCopied(t *testing.T) {
	c, _, messages, _ := access(t, 2)
	r, err := consumer.New("", categoryName, consumer.WithServices(c, c), consumer.WithStart(consumer.Earliest()), consumer.WithUntilEnd())
	if err != nil {
		t.Fatal(err)
	}
	var first, last, bytes uintptr
	n, lsn := 0, uint64(0)
	for rec, err := range r.Records(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		at := uintptr(unsafe.Pointer(unsafe.SliceData(rec.Payload)))
		if rec.LSN != lsn {
			first, last, bytes, lsn = at, at, 0, rec.LSN
		}
		if n++; at < last || cap(rec.Payload) != len(rec.Payload) {
			t.Fatal("a message is not behind the one before, or could be appended to")
		}
		last = at + uintptr(len(rec.Payload))
		bytes += uintptr(len(rec.Payload))
		// All messages lie in one piece of memory with less than 8 bytes between two.
		if last-first > bytes+8*uintptr(n) {
			t.Fatalf("%d messages of %d bytes lie over %d bytes", n, bytes, last-first)
		}
	}
	if n != messages {
		t.Errorf("%d messages, want %d", n, messages)
	}
}

// Walking the messages of a payload allocates nothing, whatever they carry.
func TestNoAllocationPerMessage(t *testing.T) {
	const n = 10_000
	var b record.Builder
	if err := b.Reset(nil, record.Envelope{Category: categoryName}); err != nil {
		t.Fatal(err)
	}
	for i := range n {
		m := record.Message{
			Payload: bytes.Repeat([]byte("x"), 100), Key: []byte(fmt.Sprint(i)),
			Attributes: []record.Attribute{{Name: "trace", Value: []byte("1")}},
		}
		if err := b.Append(&m); err != nil {
			t.Fatal(err)
		}
	}
	f, err := b.Finish()
	if err != nil {
		t.Fatal(err)
	}
	c := warm{newCell(), map[string]*scribev1.Payload{}}
	const payloads = 4
	for range payloads {
		c.addFrames(shardID(0, 1), f)
	}
	for _, e := range c.logs[shardID(0, 1)].entries {
		st := c.payloads[string(e.pointer)]
		c.answers[string(e.pointer)] = &scribev1.Payload{Codec: uint32(st.codec), Data: st.data, RawLength: e.length, Crc: record.CRC(st.data)}
	}
	seen := 0
	allocated := testing.AllocsPerRun(5, func() {
		r, err := consumer.New("", categoryName, consumer.WithServices(c, c), consumer.WithStart(consumer.Earliest()), consumer.WithUntilEnd())
		if err != nil {
			t.Fatal(err)
		}
		seen = 0
		for rec, err := range r.Records(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			seen += len(rec.Payload) / 100
		}
	})
	// What is allocated is the consumer, its iteration and its four payloads: not a tenth of an allocation a message.
	if seen != payloads*n || allocated > payloads*n/100 {
		t.Errorf("%v allocations for %d messages", allocated, seen)
	}
}

// What is behind is told in pointers, messages and bytes: exactly of what was received, by the average of the rest.
func TestBacklog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCell()
		const payloads = 100
		text := strings.Repeat("x", 1300)
		for range payloads {
			c.add(shardID(0, 1), text, text, text)
		}
		r := open(t, c, consumer.WithPrefetchBytes(64<<10))
		if b := r.Backlog(); b.Known {
			t.Errorf("before the first iteration: %+v", b)
		}
		n := 0
		for _, err := range r.Records(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			n++
			synctest.Wait()
			b := r.Backlog()
			left := uint64(payloads*3 - n)
			if !b.Known || b.Exact != (b.Messages == uint64(r.Buffered())) || b.Messages+3+left/50 < left || b.Messages > left+left/50+3 ||
				b.Pointers < left/3 || b.Pointers > left/3+1 {
				t.Fatalf("after %d messages, %d left: %+v, %d buffered", n, left, b, r.Buffered())
			}
			if about := left * 1330; b.Bytes > about+about/20+100 || b.Bytes+about/20+100 < about {
				t.Fatalf("after %d messages: %d bytes, about %d are left", n, b.Bytes, about)
			}
			if n == payloads*3 {
				if b != (consumer.Backlog{Known: true, Pointers: 1, Exact: true}) {
					t.Errorf("at the last message: %+v", b)
				}
				break
			}
		}
	})
}
