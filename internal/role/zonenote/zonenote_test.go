package zonenote

import (
	"bytes"
	"errors"
	"testing"

	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"scribe/columnar/schema"
	"scribe/columnar/zone"
)

// note is that of a pointer to a payload of three rows.
func note(t testing.TB, pointer []byte) []byte {
	t.Helper()
	s, err := schema.Parse([]byte("format: json\nfields:\n  - {name: status, type: int32}\n"))
	if err != nil {
		t.Fatal(err)
	}
	b := zone.NewBuilder(zone.Define(s))
	b.AddRows(3)
	values := array.NewInt32Builder(memory.DefaultAllocator)
	values.AppendValues([]int32{200, 404, 500}, nil)
	b.AddArray("status", values.NewArray())
	return Encode(pointer, b.Map())
}

func TestNotesAreOfOnePointer(t *testing.T) {
	pointer := []byte("a pointer")
	encoded := note(t, pointer)
	if m, err := Decode(encoded, pointer); err != nil || m.Rows != 3 {
		t.Fatalf("%+v, %v", m, err)
	}
	if _, err := Decode(encoded, []byte("another")); !errors.Is(err, ErrForeign) {
		t.Errorf("the note of another pointer: %v", err)
	}
	for n := range encoded {
		if _, err := Decode(encoded[:n], pointer); !errors.Is(err, zone.ErrInvalid) {
			t.Errorf("%d bytes of %d: %v", n, len(encoded), err)
		}
	}
	encoded[len(encoded)-1] ^= 1
	if _, err := Decode(encoded, pointer); !errors.Is(err, zone.ErrInvalid) {
		t.Errorf("a damaged note: %v", err)
	}
}

func FuzzDecode(f *testing.F) {
	pointer := []byte("a pointer")
	f.Add(note(f, pointer))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := Decode(b, pointer)
		if err != nil {
			return
		}
		again, err := Decode(Encode(pointer, m), pointer)
		if err != nil || again.Rows != m.Rows || !bytes.Equal(again.Append(nil), m.Append(nil)) {
			t.Fatalf("%+v, %v", again, err)
		}
	})
}
