package record

import (
	"errors"
	"math"
	"slices"
	"testing"
)

func TestSetSequence(t *testing.T) {
	build := func(sequenced bool) []byte {
		var b Builder
		env := Envelope{Category: "web.access", Shard: 3, Atomic: true, BaseTime: 5, SampleRate: 2}
		if err := b.Reset(nil, env); err != nil {
			t.Fatal(err)
		}
		for _, p := range []string{"one", "two", "three"} {
			if err := b.AppendPayload([]byte(p)); err != nil {
				t.Fatal(err)
			}
		}
		if sequenced {
			b.SetSequence(7, 8, 9)
		}
		frame, err := b.Finish()
		if err != nil {
			t.Fatal(err)
		}
		return frame
	}

	// Setting a sequence afterwards gives the same bytes as setting it before.
	frame := build(false)
	if err := SetSequence(frame, 7, 8, 9); err != nil {
		t.Fatal(err)
	}
	if want := build(true); !slices.Equal(frame, want) {
		t.Errorf("frame is\n%x, want\n%x", frame, want)
	}
	if err := SetSequence(frame, 1<<60, 2, math.MaxUint64-3); err != nil {
		t.Fatal(err)
	}
	h, err := Check(frame)
	if err != nil {
		t.Fatal(err)
	}
	if h.Producer != 1<<60 || h.Epoch != 2 || h.FirstSequence != math.MaxUint64-3 || !h.Sequenced() || !h.Atomic() || h.SampleRate != 2 {
		t.Errorf("header is %+v", h)
	}

	// Refusals leave the frame as it was.
	before := slices.Clone(frame)
	if err := SetSequence(frame, 1, 1, math.MaxUint64-2); !errors.Is(err, ErrInvalid) {
		t.Errorf("sequences that wrap: %v", err)
	}
	if !slices.Equal(frame, before) {
		t.Error("a refused sequence changed the frame")
	}
	frame[offShard] ^= 1
	if err := SetSequence(frame, 1, 1, 1); !errors.Is(err, ErrCorrupt) {
		t.Errorf("damaged header: %v", err)
	}
}
