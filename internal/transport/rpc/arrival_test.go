package rpc

import (
	"bytes"
	"io"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/iotest"

	"google.golang.org/protobuf/encoding/protowire"

	"scribe/internal/format/record"
	scribev1 "scribe/proto/scribe/v1"
)

// frameOf returns a frame with a body of about n bytes.
func frameOf(t testing.TB, n int) []byte {
	t.Helper()
	var b record.Builder
	if err := b.Reset(nil, record.Envelope{Category: "web.access"}); err != nil {
		t.Fatal(err)
	}
	payload := make([]byte, n)
	for i := range payload {
		payload[i] = byte(i * i)
	}
	if err := b.AppendPayload(payload); err != nil {
		t.Fatal(err)
	}
	frame, err := b.Finish()
	if err != nil {
		t.Fatal(err)
	}
	return frame
}

// some reads a random number of bytes at a time.
type some struct {
	r   io.Reader
	rng *rand.Rand
}

func (s some) Read(b []byte) (int, error) { return s.r.Read(b[:1+s.rng.IntN(len(b))]) }

func TestArrival(t *testing.T) {
	const committed = scribev1.AckLevel_ACK_LEVEL_COMMITTED
	large, small := frameOf(t, 300_000), frameOf(t, 1000)
	body := func(frames ...[]byte) []byte {
		return encodeFrames(&scribev1.WriteRequest{Ack: committed}, frames...).join()
	}
	damaged := func(frame []byte, at int) []byte {
		frame = slices.Clone(frame)
		frame[at] ^= 1
		return frame
	}
	ack := protowire.AppendVarint(protowire.AppendTag(nil, ackField, protowire.VarintType), 3)
	for name, c := range map[string]struct {
		body []byte
		want bool
	}{
		"one":                {body(large), true},
		"several":            {body(large, large, large), true},
		"a small one":        {body(large, small, large), true},
		"small ones":         {body(slices.Repeat([][]byte{small}, 100)...), false},
		"nothing":            {body(), false},
		"damaged body":       {body(large, damaged(large, 200_000)), false},
		"damaged last byte":  {body(large, damaged(large, len(large)-1)), false},
		"damaged header":     {body(large, damaged(large, 20)), false},
		"cut":                {body(large, large[:len(large)-1]), false},
		"cut in the header":  {body(large, large[:30]), false},
		"no frames":          {body(make([]byte, 300_000)), false},
		"something else":     {slices.Concat(ack, body(large)), false},
		"frames twice":       {slices.Concat(body(large), body(damaged(large, 1000))), false},
		"not protobuf after": {slices.Concat(body(large), []byte{0xff}), false},
		"a length too large": {body(large)[:100_000], false},
	} {
		rng := rand.New(rand.NewPCG(1, 2))
		for i, r := range []io.Reader{bytes.NewReader(c.body), iotest.DataErrReader(bytes.NewReader(c.body)), some{bytes.NewReader(c.body), rng}} {
			b := make([]byte, len(c.body))
			got, err := (&arrivingBody{body: b, smallest: minArriving}).readBody(r)
			if err != nil || got != c.want || !bytes.Equal(b, c.body) {
				t.Errorf("%s, reader %d: %t, %v", name, i, got, err)
			}
		}
	}
	short := make([]byte, len(large)+100)
	if _, err := (&arrivingBody{body: short}).readBody(bytes.NewReader(body(large))); err != io.ErrUnexpectedEOF { //nolint:errorlint // a sentinel, as io.ReadFull returns it
		t.Errorf("a body that ends early: %v", err)
	}
}

// What is said to be checked is what a role would find good, whatever the body and however it arrives.
func FuzzArrival(f *testing.F) {
	frame := frameOf(f, 20)
	f.Add(encodeFrames(&scribev1.WriteRequest{Ack: 3}, frame, frame).join(), uint64(1))
	f.Add(slices.Concat(encodeFrames(&scribev1.WriteRequest{Ack: 3}, frame).join(), encodeFrames(&scribev1.WriteRequest{Ack: 3}, frame[:70]).join()), uint64(2))
	f.Fuzz(func(t *testing.T, body []byte, seed uint64) {
		b := make([]byte, len(body))
		checked, err := (&arrivingBody{body: b, smallest: 1}).readBody(some{bytes.NewReader(body), rand.New(rand.NewPCG(seed, 1))})
		if err != nil {
			t.Fatal(err)
		}
		if !checked {
			return
		}
		req, err := decodeWrite(b)
		for rest := req.GetFrames(); err == nil && len(rest) > 0; {
			var h record.Header
			h, err = record.Check(rest)
			rest = rest[min(h.Len, len(rest)):]
		}
		if err != nil {
			t.Errorf("it is said to be checked: %v", err)
		}
	})
}
