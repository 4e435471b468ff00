package pointer_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"scribe/internal/format/pointer"
	"scribe/internal/format/record"
)

var rewrite = flag.Bool("rewrite", false, "write testdata/golden anew")

// id is a blob id of 2024-02-29T12:00:00.123Z.
func id() pointer.BlobID {
	return pointer.MakeBlobID(1_709_208_000_123_456, [10]byte{0x1a, 0xbc, 0xde, 0xf0, 1, 2, 3, 4, 5, 6})
}

// small is a pointer as there are most.
func small() pointer.Pointer {
	return pointer.Pointer{
		Blob: id(), Class: 72, Codec: pointer.CodecZstd, BlockOffset: 128, BlockLen: 700_000, BlockRawLen: 2_000_000, BlockCRC: 0xdeadbeef,
		Offset: 0, Length: 2_000_000, Frames: 12, Messages: 20_000, MinTime: 1_709_207_999_000_000, MaxTime: 1_709_208_000_100_000,
	}
}

func goldens() map[string]pointer.Pointer {
	most := pointer.Pointer{
		Blob:  pointer.MakeBlobID(math.MaxInt64, [10]byte{255, 255, 255, 255, 255, 255, 255, 255, 255, 255}),
		Class: math.MaxUint32, Region: "Z" + strings.Repeat("-", pointer.MaxRegion-1), Codec: pointer.CodecZstd,
		BlockOffset: pointer.MaxBlobLen - pointer.MaxBlockLen, BlockLen: pointer.MaxBlockLen, BlockRawLen: pointer.MaxBlockRaw, BlockCRC: math.MaxUint32,
		Offset: pointer.MaxBlockRaw - 1, Length: 1, Frames: math.MaxUint32, Messages: math.MaxUint32, MinTime: math.MinInt64, MaxTime: math.MaxInt64,
		Sequences: []pointer.Sequence{{Producer: math.MaxUint64, Epoch: math.MaxUint32, First: 0, Last: math.MaxUint64 - 1}},
	}
	least := pointer.Pointer{
		Blob: pointer.MakeBlobID(0, [10]byte{}), Codec: pointer.CodecNone, BlockLen: 1, BlockRawLen: 1, Length: 1, Frames: 1, Messages: 1,
	}
	sequences := small()
	sequences.Region, sequences.Offset, sequences.Length = "eu-west-1", 500_000, 1_500_000
	sequences.Sequences = []pointer.Sequence{
		{Producer: 0x0123456789abcdef, Epoch: 7, First: 1000, Last: 20_998}, {Producer: 1, Epoch: 0, First: 0, Last: 0},
	}
	encrypted := small()
	encrypted.Codec = pointer.CodecEncryptedZstd
	plain := least
	plain.Codec, plain.BlockLen = pointer.CodecEncrypted, 1+pointer.EncryptionOverhead
	return map[string]pointer.Pointer{
		"v1/small": small(), "v1/sequences": sequences, "v1/least": least, "v1/most": most, "v2/encrypted": encrypted, "v2/least": plain,
	}
}

func TestGolden(t *testing.T) {
	for name, p := range goldens() {
		path := filepath.Join("testdata", "golden", filepath.FromSlash(name)+".hex")
		written := pointer.Append(nil, &p)
		if *rewrite {
			if err := os.WriteFile(path, []byte(hex.Dump(written)), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		golden := readDump(t, path)
		if !bytes.Equal(written, golden) {
			t.Errorf("%s: Append writes\n%swant\n%s", name, hex.Dump(written), hex.Dump(golden))
		}
		got, err := pointer.Decode(golden)
		if err != nil || !reflect.DeepEqual(got, p) {
			t.Errorf("%s: Decode returns %+v, %v\nwant %+v", name, got, err, p)
		}
		if err := p.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// readDump reads what hex.Dump wrote.
func readDump(t *testing.T, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var out []byte
	for line := range strings.Lines(string(text)) {
		line, _, _ = strings.Cut(line, "|")
		for i, f := range strings.Fields(line) {
			if i == 0 {
				continue // the offset
			}
			b, err := hex.DecodeString(f)
			if err != nil {
				t.Fatalf("%s: %v", path, err)
			}
			out = append(out, b...)
		}
	}
	return out
}

// drawPointer draws any pointer that may be stored.
func drawPointer(t *rapid.T) pointer.Pointer {
	p := pointer.Pointer{
		Blob:        pointer.MakeBlobID(rapid.Int64().Draw(t, "time"), [10]byte(rapid.SliceOfN(rapid.Byte(), 10, 10).Draw(t, "entropy"))),
		Class:       rapid.Uint32().Draw(t, "class"),
		Region:      rapid.StringMatching(`([A-Za-z0-9][A-Za-z0-9._-]{0,63})?`).Draw(t, "region"),
		Codec:       rapid.SampledFrom([]pointer.Codec{pointer.CodecNone, pointer.CodecZstd}).Draw(t, "codec"),
		BlockRawLen: rapid.Uint32Range(1, pointer.MaxBlockRaw).Draw(t, "raw"),
		BlockCRC:    rapid.Uint32().Draw(t, "crc"),
		Frames:      rapid.Uint32Min(1).Draw(t, "frames"),
	}
	p.BlockLen = p.BlockRawLen
	if p.Codec != pointer.CodecNone {
		p.BlockLen = rapid.Uint32Range(1, pointer.MaxBlockLen).Draw(t, "stored")
	}
	p.BlockOffset = rapid.Uint64Range(0, pointer.MaxBlobLen-uint64(p.BlockLen)).Draw(t, "block offset")
	p.Offset = rapid.Uint32Range(0, p.BlockRawLen-1).Draw(t, "offset")
	p.Length = rapid.Uint32Range(1, p.BlockRawLen-p.Offset).Draw(t, "length")
	p.Messages = rapid.Uint32Min(p.Frames).Draw(t, "messages")
	p.MinTime = rapid.Int64().Draw(t, "min time")
	p.MaxTime = rapid.Int64Min(p.MinTime).Draw(t, "max time")
	for range rapid.IntRange(0, 20).Draw(t, "runs") {
		first := rapid.Uint64Range(0, math.MaxUint64-1).Draw(t, "first")
		p.Sequences = append(p.Sequences, pointer.Sequence{
			Producer: rapid.Uint64().Draw(t, "producer"), Epoch: rapid.Uint32().Draw(t, "epoch"),
			First: first, Last: rapid.Uint64Range(first, math.MaxUint64-1).Draw(t, "last"),
		})
	}
	return p
}

func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := drawPointer(t)
		if err := p.Validate(); err != nil {
			t.Fatal(err)
		}
		prefix := rapid.SliceOf(rapid.Byte()).Draw(t, "prefix")
		b := pointer.Append(prefix, &p)
		if !bytes.HasPrefix(b, prefix) {
			t.Fatal("Append changed what was in front")
		}
		b = b[len(prefix):]
		if n := pointer.Len(&p); n != len(b) {
			t.Fatalf("Len is %d, Append appended %d bytes", n, len(b))
		}
		got, err := pointer.Decode(b)
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, p) {
			t.Fatalf("got  %+v\nwant %+v", got, p)
		}
		clear(b)
		if !reflect.DeepEqual(got, p) {
			t.Fatal("the pointer shares memory with what it was decoded from")
		}
	})
}

// TestEveryChange: no single byte can be changed, and nothing cut off or added, without an error.
func TestEveryChange(t *testing.T) {
	for name, p := range goldens() {
		good := pointer.Append(nil, &p)
		for i := range good {
			for bit := 1; bit < 256; bit++ {
				b := bytes.Clone(good)
				b[i] ^= byte(bit)
				// The checksum comes before the version: this is never taken for a newer version.
				if got, err := pointer.Decode(b); !errors.Is(err, pointer.ErrCorrupt) {
					t.Fatalf("%s: byte %d changed to %#x: %+v, %v", name, i, b[i], got, err)
				}
			}
			if _, err := pointer.Decode(good[:i]); !errors.Is(err, pointer.ErrCorrupt) {
				t.Fatalf("%s: cut to %d bytes: %v", name, i, err)
			}
			if _, err := pointer.Decode(good[i+1:]); !errors.Is(err, pointer.ErrCorrupt) {
				t.Fatalf("%s: without the first %d bytes: %v", name, i+1, err)
			}
		}
		if _, err := pointer.Decode(append(bytes.Clone(good), 0)); !errors.Is(err, pointer.ErrCorrupt) {
			t.Fatalf("%s: with a byte more: %v", name, err)
		}
	}
}

// seal replaces the checksum at the end of b by the right one: what a faulty writer would have written.
func seal(b []byte) []byte {
	end := len(b) - 4
	binary.LittleEndian.PutUint32(b[end:], record.CRC(b[:end]))
	return b
}

func TestVersion(t *testing.T) {
	p := small()
	for version := range 256 {
		b := pointer.Append(nil, &p)
		b[0] = byte(version)
		_, err := pointer.Decode(seal(b))
		switch version {
		case 0:
			if !errors.Is(err, pointer.ErrCorrupt) {
				t.Errorf("version 0: %v", err)
			}
		case 1:
			if err != nil {
				t.Error(err)
			}
		case 2: // whose pointers are into encrypted blocks
			if !errors.Is(err, pointer.ErrCorrupt) || !strings.Contains(fmt.Sprint(err), "zstd in version 2") {
				t.Error(err)
			}
		default:
			text := fmt.Sprintf("pointer: version %d is newer than version 2", version)
			if !strings.HasPrefix(fmt.Sprint(err), text) || !errors.Is(err, pointer.ErrVersion) || errors.Is(err, pointer.ErrCorrupt) {
				t.Errorf("version %d: %v", version, err)
			}
		}
	}
	// Of a newer version nothing but the first byte and the checksum is known, not even that it is as long.
	if _, err := pointer.Decode(seal([]byte{3, 0, 0, 0, 0})); !errors.Is(err, pointer.ErrVersion) {
		t.Errorf("a short pointer of version 3: %v", err)
	}
}

// breaks are changes that make a pointer one that must not be stored, and the part that is to blame.
func breaks() map[string]func(p *pointer.Pointer) {
	return map[string]func(p *pointer.Pointer){
		"blob id":               func(p *pointer.Pointer) { p.Blob = pointer.BlobID{} },
		"region":                func(p *pointer.Pointer) { p.Region = "eu west" },
		"region: is 65":         func(p *pointer.Pointer) { p.Region = strings.Repeat("r", 65) },
		"codec":                 func(p *pointer.Pointer) { p.Codec = 5 },
		"block length: 1999952": func(p *pointer.Pointer) { p.Codec, p.BlockLen = pointer.CodecEncrypted, p.BlockRawLen },
		"block length: 48":      func(p *pointer.Pointer) { p.Codec, p.BlockLen = pointer.CodecEncryptedZstd, pointer.EncryptionOverhead },
		"codec: 0":              func(p *pointer.Pointer) { p.Codec = 0 },
		"block length: 0":       func(p *pointer.Pointer) { p.BlockLen = 0 },
		"block length":          func(p *pointer.Pointer) { p.BlockLen = pointer.MaxBlockLen + 1 },
		"raw block length: 0":   func(p *pointer.Pointer) { p.BlockRawLen, p.Length = 0, 0 },
		"raw block length":      func(p *pointer.Pointer) { p.BlockRawLen = pointer.MaxBlockRaw + 1 },
		"without compression":   func(p *pointer.Pointer) { p.Codec = pointer.CodecNone },
		"block offset":          func(p *pointer.Pointer) { p.BlockOffset = pointer.MaxBlobLen },
		"block offset: 7":       func(p *pointer.Pointer) { p.BlockOffset = math.MaxUint64 - 5 },
		"length":                func(p *pointer.Pointer) { p.Length = 0 },
		"length: 2000000":       func(p *pointer.Pointer) { p.Offset = 1 },
		"length: 4294967295":    func(p *pointer.Pointer) { p.Offset, p.Length = math.MaxUint32, math.MaxUint32 },
		"messages":              func(p *pointer.Pointer) { p.Frames = 0 },
		"messages: 11":          func(p *pointer.Pointer) { p.Messages = 11 },
		"times":                 func(p *pointer.Pointer) { p.MaxTime = p.MinTime - 1 },
		"sequences":             func(p *pointer.Pointer) { p.Sequences = make([]pointer.Sequence, pointer.MaxSequences+1) },
		"sequences: run 0":      func(p *pointer.Pointer) { p.Sequences = []pointer.Sequence{{First: 2, Last: 1}} },
		"sequences: run":        func(p *pointer.Pointer) { p.Sequences = []pointer.Sequence{{Last: math.MaxUint64}} },
	}
}

func TestInvalid(t *testing.T) {
	for part, change := range breaks() {
		p := small()
		change(&p)
		what, _, _ := strings.Cut(part, ":")
		err := p.Validate()
		if !errors.Is(err, pointer.ErrInvalid) || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: Validate: %v", part, err)
		}
		// Append has no error, so Decode must have one.
		if _, err := pointer.Decode(pointer.Append(nil, &p)); !errors.Is(err, pointer.ErrCorrupt) {
			t.Errorf("%s: Decode: %v", part, err)
		}
	}
	err := (&pointer.Pointer{}).Validate()
	for _, part := range []string{"blob id", "codec", "block length", "raw block length", "length", "messages"} {
		if err == nil || !strings.Contains(err.Error(), "invalid "+part) {
			t.Errorf("Validate of the zero pointer does not name %q: %v", part, err)
		}
	}
}

func TestTooLong(t *testing.T) {
	p := small()
	for i := range pointer.MaxSequences {
		p.Sequences = append(p.Sequences, pointer.Sequence{Producer: uint64(i) << 50, Epoch: 1 << 20, First: 1 << 40, Last: 1<<40 + 1<<20})
	}
	if err := p.Validate(); !errors.Is(err, pointer.ErrInvalid) || !strings.Contains(err.Error(), "65536") {
		t.Errorf("Validate of a pointer of %d bytes: %v", pointer.Len(&p), err)
	}
	if _, err := pointer.Decode(pointer.Append(nil, &p)); !errors.Is(err, pointer.ErrCorrupt) {
		t.Errorf("Decode of a pointer of %d bytes: %v", pointer.Len(&p), err)
	}
	p.Sequences = p.Sequences[:2000]
	if err := p.Validate(); err != nil || pointer.Len(&p) > pointer.MaxLen {
		t.Errorf("Validate of a pointer of %d bytes: %v", pointer.Len(&p), err)
	}
}

// TestOneForm: a number in a longer form than needed is refused.
func TestOneForm(t *testing.T) {
	p := small()
	b := pointer.Append(nil, &p)
	const class = 18 // 72, one byte
	long := append(bytes.Clone(b[:class]), 72|0x80, 0)
	long = append(long, b[class+1:]...)
	if _, err := pointer.Decode(seal(long)); !errors.Is(err, pointer.ErrCorrupt) || !strings.Contains(err.Error(), "shortest") {
		t.Errorf("Decode: %v", err)
	}
}

// TestHostileCount: a count of runs that can't fit is refused before memory is spent on it.
func TestHostileCount(t *testing.T) {
	p := small()
	b := pointer.Append(nil, &p)
	b = append(b[:len(b)-5], 0xff, 0x1f, 0, 0, 0, 0) // 4,095 runs
	sealed := seal(b)
	const rounds = 100
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range rounds {
		if _, err := pointer.Decode(sealed); !errors.Is(err, pointer.ErrCorrupt) || !strings.Contains(err.Error(), "sequences") {
			t.Fatalf("Decode: %v", err)
		}
	}
	runtime.ReadMemStats(&after)
	// The runs would take 100,000 bytes; what there is are the error and its texts.
	if n := (after.TotalAlloc - before.TotalAlloc) / rounds; n > 8<<10 {
		t.Errorf("%d bytes were allocated", n)
	}
}

func FuzzDecode(f *testing.F) {
	for _, p := range goldens() {
		b := pointer.Append(nil, &p)
		f.Add(b[:len(b)-4])
	}
	f.Add([]byte{1, 2})
	f.Fuzz(func(t *testing.T, body []byte) {
		_, _ = pointer.Decode(body) // mostly a wrong checksum
		b := seal(append(bytes.Clone(body), 0, 0, 0, 0))
		p, err := pointer.Decode(b)
		if err != nil {
			if !errors.Is(err, pointer.ErrCorrupt) && !errors.Is(err, pointer.ErrVersion) {
				t.Fatalf("an error that callers can't branch on: %v", err)
			}
			return
		}
		if err := p.Validate(); err != nil {
			t.Fatalf("Decode accepts what Validate refuses: %v", err)
		}
		if again := pointer.Append(nil, &p); !bytes.Equal(again, b) {
			t.Fatalf("decoded\n%sencoded again\n%s", hex.Dump(b), hex.Dump(again))
		}
		if n := pointer.Len(&p); n != len(b) {
			t.Fatalf("Len is %d, want %d", n, len(b))
		}
		if _, _, err := pointer.ParseKey(p.Key()); err != nil {
			t.Fatal(err)
		}
	})
}
