package field_test

import (
	"encoding/binary"
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"scribe/internal/format/pointer/field"
)

func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		u, i, s := rapid.Uint64().Draw(t, "u"), rapid.Int64().Draw(t, "i"), rapid.String().Draw(t, "s")
		b := binary.AppendUvarint([]byte{9}, u)
		if n := field.UvarintLen(u); n != len(b)-1 {
			t.Fatalf("UvarintLen(%d) = %d, want %d", u, n, len(b)-1)
		}
		n := len(b)
		b = binary.AppendVarint(b, i)
		if got := field.VarintLen(i); got != len(b)-n {
			t.Fatalf("VarintLen(%d) = %d, want %d", i, got, len(b)-n)
		}
		b = append(binary.AppendUvarint(b, uint64(len(s))), s...)
		b = binary.LittleEndian.AppendUint32(b, uint32(u))
		b = binary.LittleEndian.AppendUint64(b, u)
		b = append(b, 7)

		r := field.NewReader(b, 1)
		if got := r.Uvarint("u", math.MaxUint64); got != u {
			t.Fatalf("Uvarint: %d, want %d", got, u)
		}
		if got := r.Varint("i"); got != i {
			t.Fatalf("Varint: %d, want %d", got, i)
		}
		if got := r.Sized("s", 1<<20); string(got) != s {
			t.Fatalf("Sized: %q, want %q", got, s)
		}
		if r.Fixed32("fixed") != uint32(u) || r.Fixed64("fixed") != u || r.Fixed8("fixed") != 7 {
			t.Fatal("fixed fields differ")
		}
		r.End()
		if err := r.Err(); err != nil || r.Left() != 0 || r.Pos() != len(b) {
			t.Fatalf("%v, %d bytes left at %d", err, r.Left(), r.Pos())
		}
	})
}

func TestErrors(t *testing.T) {
	for name, test := range map[string]struct {
		b    []byte
		take func(r *field.Reader)
		want string
	}{
		"empty":       {nil, func(r *field.Reader) { r.Uvarint("n", 10) }, "n at byte 0: number does not end"},
		"cut":         {[]byte{0x80}, func(r *field.Reader) { r.Uvarint("n", 10) }, "n at byte 0: number does not end"},
		"over 64":     {[]byte{255, 255, 255, 255, 255, 255, 255, 255, 255, 2}, func(r *field.Reader) { r.Uvarint("n", math.MaxUint64) }, "over 64 bits"},
		"long form":   {[]byte{0x80, 0}, func(r *field.Reader) { r.Uvarint("n", 10) }, "shortest form"},
		"limit":       {[]byte{11}, func(r *field.Reader) { r.Uvarint("n", 10) }, "11 is over the limit of 10"},
		"over 32":     {binary.AppendUvarint(nil, 1<<32), func(r *field.Reader) { r.Uint32("n") }, "over the limit"},
		"count":       {[]byte{3, 0, 0, 0, 0, 0}, func(r *field.Reader) { r.Count("c", 10, 2) }, "c at byte 0: 3 do not fit"},
		"count limit": {[]byte{11}, func(r *field.Reader) { r.Count("c", 10, 1) }, "over the limit"},
		"sized":       {[]byte{2, 1}, func(r *field.Reader) { r.Sized("s", 10) }, "s at byte 1: needs 2 bytes, 1 are left"},
		"fixed":       {[]byte{1, 2, 3}, func(r *field.Reader) { r.Fixed32("f") }, "needs 4 bytes"},
		"fixed 64":    {[]byte{1, 2, 3}, func(r *field.Reader) { r.Fixed64("f") }, "needs 8 bytes"},
		"rest":        {[]byte{1, 2}, func(r *field.Reader) { r.Fixed8("f"); r.End() }, "end at byte 1: 1 bytes follow"},
		"own":         {[]byte{1}, func(r *field.Reader) { r.Fail("x", "%d is odd", 1) }, "x at byte 0: 1 is odd"},
	} {
		r := field.NewReader(test.b, 0)
		test.take(&r)
		first := r.Err()
		if first == nil || !strings.Contains(first.Error(), test.want) {
			t.Errorf("%s: %v, want %q", name, first, test.want)
			continue
		}
		// From then on there is nothing but zeros, and the first error stays.
		if r.Uvarint("later", 10) != 0 || r.Varint("later") != 0 || r.Take("later", 0) != nil || r.Count("later", 1, 1) != 0 || r.Fixed8("later") != 0 {
			t.Errorf("%s: a reader that failed yields something", name)
		}
		r.End()
		r.Fail("later", "again")
		if r.Err() != first {
			t.Errorf("%s: the first error was replaced by %v", name, r.Err())
		}
	}
}
