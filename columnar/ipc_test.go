package columnar

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"scribe/internal/format/record"
)

// everyType is a batch of three rows with a column of each kind of type that is carried.
func everyType(tb testing.TB) arrow.RecordBatch {
	tb.Helper()
	item := arrow.StructOf(
		arrow.Field{Name: "n", Type: arrow.PrimitiveTypes.Int64},
		arrow.Field{Name: "s", Type: arrow.BinaryTypes.String, Nullable: true},
	)
	s := arrow.NewSchema([]arrow.Field{
		{Name: "null", Type: arrow.Null, Nullable: true},
		{Name: "bool", Type: arrow.FixedWidthTypes.Boolean, Nullable: true},
		{Name: "i8", Type: arrow.PrimitiveTypes.Int8, Nullable: true},
		{Name: "u64", Type: arrow.PrimitiveTypes.Uint64, Nullable: true},
		{Name: "f32", Type: arrow.PrimitiveTypes.Float32, Nullable: true},
		{Name: "dec", Type: &arrow.Decimal128Type{Precision: 20, Scale: 2}, Nullable: true},
		{Name: "ts", Type: timestampType, Nullable: true},
		{Name: "text", Type: arrow.BinaryTypes.String, Nullable: true},
		{Name: "large", Type: arrow.BinaryTypes.LargeBinary, Nullable: true},
		{Name: "fixed", Type: &arrow.FixedSizeBinaryType{ByteWidth: 3}, Nullable: true},
		{Name: "list", Type: arrow.ListOf(item), Nullable: true},
		{Name: "pair", Type: arrow.FixedSizeListOf(2, arrow.PrimitiveTypes.Int16), Nullable: true},
		{Name: "map", Type: arrow.MapOf(arrow.BinaryTypes.String, arrow.PrimitiveTypes.Int32), Nullable: true},
		{Name: "dict", Type: &arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int8, ValueType: arrow.BinaryTypes.String}, Nullable: true},
	}, nil)
	b := array.NewRecordBuilder(memory.NewGoAllocator(), s)
	defer b.Release()
	rows := `{"bool":true,"i8":-3,"u64":18446744073709551615,"f32":1.5,"ts":"2025-01-02T03:04:05.000006Z","text":"héllo","large":"AQID","fixed":"YWJj","list":[{"n":1,"s":"a"},{"n":2}],"pair":[1,2],"map":[{"key":"k","value":1}],"dict":"x"}
{"text":"","list":[],"map":[]}
{"bool":false,"i8":3,"u64":0,"f32":-0.5,"ts":"1999-01-02T03:04:05Z","text":"日本","large":"","fixed":"eHl6","list":[{"n":3,"s":null}],"pair":[3,4],"map":[{"key":"l","value":2},{"key":"m","value":3}],"dict":"y"}`
	for line := range strings.SplitSeq(rows, "\n") {
		if err := b.UnmarshalJSON([]byte(line)); err != nil {
			tb.Fatal(err)
		}
	}
	rec := b.NewRecordBatch()
	defer rec.Release()
	dec := array.NewDecimal128Builder(memory.NewGoAllocator(), s.Field(5).Type.(*arrow.Decimal128Type))
	defer dec.Release()
	dec.Append(decimal128.FromI64(123456))
	dec.AppendNull()
	dec.Append(decimal128.FromI64(-1))
	col := dec.NewArray()
	defer col.Release()
	out, err := rec.SetColumn(5, col)
	if err != nil {
		tb.Fatal(err)
	}
	return out
}

func encode(tb testing.TB, rec arrow.RecordBatch) []byte {
	tb.Helper()
	b, err := EncodeIPC(nil, rec)
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

func TestIPCRoundTrip(t *testing.T) {
	rec := everyType(t)
	defer rec.Release()
	prefix := []byte("before")
	b, err := EncodeIPC(bytes.Clone(prefix), rec)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.HasPrefix(b, prefix) {
		t.Fatal("EncodeIPC did not append")
	}
	// Streams stand wherever a frame's header ends: every alignment must do.
	for shift := range 8 {
		buf := make([]byte, shift+len(b))
		at := copy(buf[shift:], b[len(prefix):]) + shift
		got, err := DecodeIPC(buf[shift:at:at])
		if err != nil {
			t.Fatalf("shift %d: %v", shift, err)
		}
		if !array.RecordEqual(rec, got) {
			t.Fatalf("shift %d: got %v, want %v", shift, got, rec)
		}
		got.Release()
	}
	// What was decoded can be encoded again, and gives the same bytes.
	got, err := DecodeIPC(bytes.Clone(b[len(prefix):]))
	if err != nil {
		t.Fatal(err)
	}
	defer got.Release()
	if again := encode(t, got); !bytes.Equal(again, b[len(prefix):]) {
		t.Fatal("a decoded batch is encoded differently")
	}
}

func TestDecodeIPCDoesNotCopy(t *testing.T) {
	rec := everyType(t)
	defer rec.Release()
	b := encode(t, rec)
	got, err := DecodeIPC(b)
	if err != nil {
		t.Fatal(err)
	}
	defer got.Release()
	values := got.Column(7).Data().Buffers()[2].Bytes()
	from, to := uintptr(unsafe.Pointer(&b[0])), uintptr(unsafe.Pointer(&b[len(b)-1]))
	if at := uintptr(unsafe.Pointer(&values[0])); at < from || at > to {
		t.Fatal("the values were copied")
	}
}

func TestDecodeIPCRefuses(t *testing.T) {
	rec := everyType(t)
	defer rec.Release()
	good := encode(t, rec)
	write := func(n int, opts ...ipc.Option) []byte {
		var buf bytes.Buffer
		w := ipc.NewWriter(&buf, append(opts, ipc.WithSchema(rec.Schema()))...)
		for range n {
			if err := w.Write(rec); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return buf.Bytes()
	}
	eos := good[len(good)-8:]
	for name, c := range map[string]struct {
		body []byte
		want error
	}{
		"empty":         {nil, ErrInvalid},
		"only the end":  {eos, ErrInvalid},
		"schema only":   {write(0), ErrInvalid},
		"two batches":   {write(2), ErrUnsupported},
		"compressed":    {write(1, ipc.WithZstd()), ErrUnsupported},
		"trailing byte": {append(bytes.Clone(good), 0), ErrInvalid},
		"too large":     {make([]byte, MaxIPC+1), ErrTooLarge},
		"old stream":    {good[4:], ErrInvalid},
	} {
		if _, err := DecodeIPC(c.body); !errors.Is(err, c.want) {
			t.Errorf("%s: got %v, want %v", name, err, c.want)
		}
	}
	// A stream may end without its end marker, and nowhere else.
	if got, err := DecodeIPC(good[:len(good)-8]); err != nil {
		t.Errorf("without the end marker: %v", err)
	} else {
		got.Release()
	}
	for n := range len(good) - 8 {
		if got, err := DecodeIPC(good[:n:n]); err == nil {
			got.Release()
			t.Fatalf("cut at %d of %d: no error", n, len(good))
		}
	}
}

func TestEncodeIPCRefuses(t *testing.T) {
	view := array.NewStringViewBuilder(memory.NewGoAllocator())
	defer view.Release()
	view.Append("x")
	col := view.NewArray()
	defer col.Release()
	rec := array.NewRecordBatch(arrow.NewSchema([]arrow.Field{{Name: "v", Type: col.DataType()}}, nil), []arrow.Array{col}, 1)
	defer rec.Release()
	dst := []byte("kept")
	if got, err := EncodeIPC(dst, rec); !errors.Is(err, ErrUnsupported) || string(got) != "kept" {
		t.Errorf("got %q, %v", got, err)
	}
}

// touch reads the values of a batch the way a user would: what DecodeIPC lets through must not panic here. Columns of nulls take
// no room in a stream, so of millions of rows only the first ones are read.
func touch(rec arrow.RecordBatch) {
	for _, c := range rec.Columns() {
		for i := range min(c.Len(), 1000) {
			_ = c.ValueStr(i)
		}
	}
}

func TestDecodeIPCFlips(t *testing.T) {
	rec := everyType(t)
	defer rec.Release()
	good := encode(t, rec)
	for i := range good {
		for _, x := range []byte{0x01, 0x80, 0xFF} {
			bad := bytes.Clone(good)
			bad[i] ^= x
			if got, err := DecodeIPC(bad); err == nil {
				touch(got)
				got.Release()
			}
		}
	}
}

func FuzzDecodeIPC(f *testing.F) {
	rec := everyType(f)
	defer rec.Release()
	f.Add(encode(f, rec))
	small, err := FromFrames(frames(f, "k", 3, record.Envelope{Category: "a"}), Meta{})
	if err != nil {
		f.Fatal(err)
	}
	defer small.Release()
	f.Add(encode(f, small))
	seeds, err := filepath.Glob("testdata/*.arrows")
	if err != nil {
		f.Fatal(err)
	}
	for _, name := range seeds {
		b, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := DecodeIPC(b)
		if err != nil {
			if !errors.Is(err, ErrInvalid) && !errors.Is(err, ErrUnsupported) && !errors.Is(err, ErrTooLarge) {
				t.Fatalf("error of another kind: %v", err)
			}
			return
		}
		defer got.Release()
		touch(got)
		if _, err := EncodeIPC(nil, got); err != nil {
			t.Fatalf("decoded, but can't be encoded: %v", err)
		}
	})
}

// go test ./columnar -run - -bench IPC -count 6
func BenchmarkIPC(b *testing.B) {
	payload := frames(b, "key", 20_000, record.Envelope{Category: "bench"})
	rec, err := FromFrames(payload, Meta{Shard: 1, LSN: 2, Persisted: 3})
	if err != nil {
		b.Fatal(err)
	}
	defer rec.Release()
	body := encode(b, rec)
	b.Run("encode", func(b *testing.B) {
		b.SetBytes(int64(len(body)))
		b.ReportAllocs()
		buf := make([]byte, 0, len(body))
		for b.Loop() {
			if _, err := EncodeIPC(buf, rec); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("decode", func(b *testing.B) {
		b.SetBytes(int64(len(body)))
		b.ReportAllocs()
		for b.Loop() {
			got, err := DecodeIPC(body)
			if err != nil {
				b.Fatal(err)
			}
			got.Release()
		}
	})
}
