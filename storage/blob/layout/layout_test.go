package layout_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"scribe/internal/format/pointer"
	"scribe/internal/format/record"
	"scribe/storage/blob"
	"scribe/storage/blob/layout"
	"scribe/storage/blob/memory"
)

var rewrite = flag.Bool("rewrite", false, "write testdata/golden anew")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestReadBack(t *testing.T) {
	b := sampleBlob(t)
	s := store(t, b.key, b.bytes)
	f, err := layout.ReadFooter(t.Context(), s, b.key)
	if err != nil {
		t.Fatal(err)
	}
	if f.ID != blobID(0) || f.Class != 72 || f.Region != "eu-west-1" || f.Created != created || len(f.Blocks) != 2 || !reflect.DeepEqual(f.History, sampleHistory()) {
		t.Errorf("footer: %s", text(f))
	}
	if !reflect.DeepEqual(f.Entries, b.entries) {
		t.Errorf("entries\n%+v, want\n%+v", f.Entries, b.entries)
	}
	large, shared := sample(t)
	for i, want := range append([]payload{large}, shared...) {
		p := &f.Entries[i].Pointer
		if _, err := pointer.Decode(pointer.Append(nil, p)); err != nil {
			t.Error(err)
		}
		stored, err := layout.ReadBlock(t.Context(), s, p)
		if err != nil {
			t.Fatal(err)
		}
		block, err := layout.Decompress(nil, p.Codec, stored, int(p.BlockRawLen))
		if err != nil {
			t.Fatal(err)
		}
		got, err := layout.Payload(block, p)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want.frames) {
			t.Errorf("payload %d is not what was put", i)
		}
		if cap(got) != len(got) {
			t.Errorf("payload %d can be appended to, over the next one", i)
		}
	}
	if _, err := layout.Verify(t.Context(), s, b.key, nil); err != nil {
		t.Errorf("Verify: %v", err)
	}
}

// TestParts: blocks are not copied on the way into the store.
func TestParts(t *testing.T) {
	large, _ := sample(t)
	b := layout.NewBuilder(blobID(0), 1, "", created)
	n := b.AddBlock(pointer.CodecNone, large.frames, len(large.frames))
	b.AddPayload(n, 0, uint32(len(large.frames)), large.entry)
	parts, err := b.Finish()
	if err != nil {
		t.Fatal(err)
	}
	if len(parts) != 3 || len(parts[0]) != layout.HeaderLen || &parts[1][0] != &large.frames[0] {
		t.Errorf("%d parts, the first of %d bytes", len(parts), len(parts[0]))
	}
	again, err := b.Finish()
	if err != nil || !bytes.Equal(slices.Concat(parts...), slices.Concat(again...)) {
		t.Errorf("Finish again differs: %v", err)
	}
}

// opener decrypts blocks that seal has made: a byte is changed, and EncryptionOverhead bytes are put in front.
type opener struct{ err error }

func (o opener) DecryptBlock(_ context.Context, _ pointer.Codec, stored []byte, _ int) ([]byte, error) {
	if o.err != nil {
		return nil, o.err
	}
	out := bytes.Clone(stored[pointer.EncryptionOverhead:])
	out[0] ^= 1
	return out, nil
}

func seal(block []byte) []byte {
	out := append(make([]byte, pointer.EncryptionOverhead), block...)
	out[pointer.EncryptionOverhead] ^= 1
	return out
}

// encryptedBlob is sampleBlob with its blocks encrypted, but for the last one.
func encryptedBlob(t *testing.T) built {
	t.Helper()
	large, shared := sample(t)
	b := layout.NewBuilder(blobID(0), 72, "eu-west-1", created)
	b.SetHistory(sampleHistory())
	out := built{key: pointer.Key(72, blobID(0))}
	for i, p := range append([]payload{large}, shared...) {
		codec, stored := pointer.CodecZstd, compress(t, p.frames)
		if i == 1 {
			codec, stored = pointer.CodecNone, p.frames
		}
		if i < 2 {
			codec, stored = codec.Encrypted(), seal(stored)
		}
		e := p.entry
		e.Pointer = b.AddPayload(b.AddBlock(codec, stored, len(p.frames)), 0, uint32(len(p.frames)), p.entry)
		out.pointers, out.entries = append(out.pointers, e.Pointer), append(out.entries, e)
	}
	parts, err := b.Finish()
	if err != nil {
		t.Fatal(err)
	}
	out.bytes = slices.Concat(parts...)
	return out
}

// TestEncrypted: a blob with encrypted blocks is of version 3; it is verified with the keys, and without them as far as its checksums go.
func TestEncrypted(t *testing.T) {
	b := encryptedBlob(t)
	if b.bytes[8] != 3 || b.bytes[len(b.bytes)-16] != 3 {
		t.Errorf("versions %d and %d", b.bytes[8], b.bytes[len(b.bytes)-16])
	}
	s := store(t, b.key, b.bytes)
	f, err := layout.ReadFooter(t.Context(), s, b.key)
	if err != nil || !reflect.DeepEqual(f.Entries, b.entries) {
		t.Errorf("%+v, %v", f, err)
	}
	for i := range b.pointers {
		got, err := pointer.Decode(pointer.Append(nil, &b.pointers[i]))
		if err != nil || !reflect.DeepEqual(got, b.pointers[i]) {
			t.Errorf("%+v, %v", got, err)
		}
	}
	if closed, err := layout.Verify(t.Context(), s, b.key, opener{}); closed != 0 || err != nil {
		t.Errorf("%d closed, %v", closed, err)
	}
	if closed, err := layout.Verify(t.Context(), s, b.key, nil); closed != 2 || err != nil {
		t.Errorf("without keys: %d closed, %v", closed, err)
	}
	if closed, err := layout.Verify(t.Context(), s, b.key, opener{layout.ErrNoKey}); closed != 2 || err != nil {
		t.Errorf("with deleted keys: %d closed, %v", closed, err)
	}
	if _, err := layout.Verify(t.Context(), s, b.key, opener{layout.ErrDamaged}); !errors.Is(err, layout.ErrDamaged) || !strings.Contains(err.Error(), "block 0 at byte 128: cannot be decrypted") {
		t.Error(err)
	}
	if _, err := layout.Verify(t.Context(), s, b.key, opener{blob.ErrUnavailable}); !errors.Is(err, blob.ErrUnavailable) || errors.Is(err, layout.ErrDamaged) {
		t.Error(err)
	}
	// An older version has no such blocks.
	data := bytes.Clone(b.bytes)
	data[8], data[len(data)-16] = 2, 2
	if _, err := layout.ReadFooter(t.Context(), store(t, b.key, reseal(data)), b.key); !errors.Is(err, layout.ErrDamaged) || !strings.Contains(err.Error(), "zstd, encrypted in version 2") {
		t.Error(err)
	}
}

// TestGolden reads a blob of every version that was ever written, and writes the one of the current version byte for byte: its
// blocks are not compressed, since what a compressor writes may change.
func TestGolden(t *testing.T) {
	large, shared := sample(t)
	id := blobID(0)
	b := layout.NewBuilder(id, 72, "eu-west-1", created)
	b.SetHistory(sampleHistory())
	raw := slices.Concat(shared[0].frames, shared[1].frames)
	n := b.AddBlock(pointer.CodecNone, raw, len(raw))
	first := b.AddPayload(n, 0, uint32(len(shared[0].frames)), shared[0].entry)
	b.AddPayload(n, uint32(len(shared[0].frames)), uint32(len(shared[1].frames)), shared[1].entry)
	n = b.AddBlock(pointer.CodecNone, large.frames, len(large.frames))
	b.AddPayload(n, 0, uint32(len(large.frames)), large.entry)
	parts, err := b.Finish()
	if err != nil {
		t.Fatal(err)
	}
	written := slices.Concat(parts...)
	path := filepath.Join("testdata", "golden", "v2", "plain.blob")
	if *rewrite {
		if err := os.WriteFile(path, written, 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join("testdata", "golden", "v2", "zstd.blob"), sampleBlob(t).bytes, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if *rewrite {
		if err := os.WriteFile(filepath.Join("testdata", "golden", "v3", "encrypted.blob"), encryptedBlob(t).bytes, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	golden, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(written, golden) {
		t.Errorf("the builder writes\n%s\nwant\n%s", hex.Dump(written), hex.Dump(golden))
	}
	for _, name := range []string{"v1/plain.blob", "v1/zstd.blob", "v2/plain.blob", "v2/zstd.blob", "v3/encrypted.blob"} {
		golden, err := os.ReadFile(filepath.Join("testdata", "golden", filepath.FromSlash(name)))
		if err != nil {
			t.Fatal(err)
		}
		key := pointer.Key(72, id)
		s := store(t, key, golden)
		if _, err := layout.Verify(t.Context(), s, key, opener{}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		f, err := layout.ReadFooter(t.Context(), s, key)
		if err != nil {
			t.Fatal(err)
		}
		if len(f.Entries) != 3 {
			t.Errorf("%s: %s", name, text(f))
		}
		if hasHistory := !strings.HasPrefix(name, "v1"); (f.History.Run != 0) != hasHistory || (f.Entries[0].Start != 0) != hasHistory || (f.Entries[0].Settings != nil) != hasHistory {
			t.Errorf("%s: %s", name, text(f))
		}
		if strings.HasSuffix(name, "plain.blob") && !reflect.DeepEqual(f.Entries[0].Pointer, first) {
			t.Errorf("%s: %+v, want %+v", name, f.Entries[0].Pointer, first)
		}
	}
}

// places returns the damage in err.
func places(t *testing.T, err error) []*layout.DamageError {
	t.Helper()
	if err == nil {
		return nil
	}
	var out []*layout.DamageError
	var walk func(error)
	walk = func(err error) {
		if many, ok := err.(interface{ Unwrap() []error }); ok {
			for _, e := range many.Unwrap() {
				walk(e)
			}
			return
		}
		var d *layout.DamageError
		if !errors.As(err, &d) {
			t.Errorf("not a DamageError: %v", err)
			return
		}
		out = append(out, d)
	}
	walk(err)
	return out
}

// TestVerifyFindsEveryFlip changes every byte of a blob, in every bit, and cuts the blob everywhere. Verify must find it and name a place
// at or before the damage.
func TestVerifyFindsEveryFlip(t *testing.T) {
	b := sampleBlob(t)
	for i := range b.bytes {
		for bit := range 8 {
			data := bytes.Clone(b.bytes)
			data[i] ^= 1 << bit
			_, err := layout.Verify(t.Context(), store(t, b.key, data), b.key, nil)
			if !errors.Is(err, layout.ErrDamaged) {
				t.Fatalf("bit %d of byte %d: %v", bit, i, err)
			}
			for _, d := range places(t, err) {
				if d.Key != b.key || d.What == "" || d.Offset < 0 || d.Offset > int64(i) {
					t.Fatalf("bit %d of byte %d: %v", bit, i, d)
				}
			}
		}
		_, err := layout.Verify(t.Context(), store(t, b.key, b.bytes[:i]), b.key, nil)
		if !errors.Is(err, layout.ErrDamaged) || len(places(t, err)) == 0 {
			t.Fatalf("cut to %d bytes: %v", i, err)
		}
	}
	for _, more := range [][]byte{{0}, b.bytes} {
		data := slices.Concat(b.bytes, more)
		if _, err := layout.Verify(t.Context(), store(t, b.key, data), b.key, nil); !errors.Is(err, layout.ErrDamaged) {
			t.Fatalf("with %d bytes more: %v", len(more), err)
		}
	}
}

// TestFlippedFooter: what a footer tells is right or an error.
func TestFlippedFooter(t *testing.T) {
	b := sampleBlob(t)
	good, err := layout.ReadFooter(t.Context(), store(t, b.key, b.bytes), b.key)
	if err != nil {
		t.Fatal(err)
	}
	for i := range b.bytes {
		data := bytes.Clone(b.bytes)
		data[i] ^= 0x55
		f, err := layout.ReadFooter(t.Context(), store(t, b.key, data), b.key)
		if err == nil && !reflect.DeepEqual(f, good) {
			t.Fatalf("byte %d: the footer has changed and is taken for good", i)
		}
		if err != nil && len(places(t, err)) != 1 {
			t.Fatalf("byte %d: %v", i, err)
		}
		for _, p := range b.pointers {
			if _, err := layout.ReadBlock(t.Context(), store(t, b.key, data), &p); err != nil {
				if !errors.Is(err, layout.ErrDamaged) {
					t.Fatalf("byte %d: %v", i, err)
				}
			} else if inside := uint64(i) >= p.BlockOffset && uint64(i) < p.BlockOffset+uint64(p.BlockLen); inside {
				t.Fatalf("byte %d is in the block and ReadBlock succeeds", i)
			}
		}
	}
}

// reseal replaces the checksums of header, footer and trailer by the right ones: what a faulty writer would have written.
func reseal(data []byte) []byte {
	end := len(data) - layout.TrailerLen
	footer := data[binary.LittleEndian.Uint64(data[end:]):end]
	binary.LittleEndian.PutUint32(data[end+12:], record.CRC(footer))
	binary.LittleEndian.PutUint32(data[end+20:], record.CRC(data[end:end+20]))
	binary.LittleEndian.PutUint32(data[124:], record.CRC(data[:124]))
	return data
}

func TestVersions(t *testing.T) {
	b := sampleBlob(t)
	trailer := len(b.bytes) - layout.TrailerLen
	for name, at := range map[string]int{"header": 8, "trailer": trailer + 16} {
		for _, version := range []byte{0, 4, 255} {
			data := bytes.Clone(b.bytes)
			data[at] = version
			_, err := layout.Verify(t.Context(), store(t, b.key, reseal(data)), b.key, nil)
			if version == 0 {
				if !errors.Is(err, layout.ErrDamaged) {
					t.Errorf("%s of version 0: %v", name, err)
				}
				continue
			}
			var v *layout.VersionError
			if !errors.As(err, &v) || v.Version != version || v.Key != b.key || errors.Is(err, layout.ErrDamaged) {
				t.Errorf("%s of version %d: %v", name, version, err)
			}
			if _, err := layout.ReadFooter(t.Context(), store(t, b.key, data), b.key); name == "trailer" && !errors.Is(err, layout.ErrVersion) {
				t.Errorf("ReadFooter of version %d: %v", version, err)
			}
		}
	}
	data := bytes.Clone(b.bytes)
	if _, err := layout.Verify(t.Context(), store(t, b.key, reseal(data)), b.key, nil); err != nil {
		t.Errorf("the test changes what it should not: %v", err)
	}
}

// TestReserved: bytes without a meaning are 0, so that a new version can give them one.
func TestReserved(t *testing.T) {
	b := sampleBlob(t)
	trailer := len(b.bytes) - layout.TrailerLen
	for _, at := range []int{10, 11, 40 + len("eu-west-1"), 103, 104, 123, trailer + 17, trailer + 19} {
		data := bytes.Clone(b.bytes)
		data[at] = 1
		if _, err := layout.Verify(t.Context(), store(t, b.key, reseal(data)), b.key, nil); !errors.Is(err, layout.ErrDamaged) || !strings.Contains(err.Error(), "reserved") {
			t.Errorf("byte %d: %v", at, err)
		}
	}
}

// TestWrongBlob: a blob under a key that is not its own.
func TestWrongBlob(t *testing.T) {
	b := sampleBlob(t)
	for _, key := range []string{pointer.Key(72, blobID(1)), pointer.Key(73, blobID(0))} {
		if _, err := layout.Verify(t.Context(), store(t, key, b.bytes), key, nil); !errors.Is(err, layout.ErrDamaged) || !strings.Contains(err.Error(), b.key) {
			t.Errorf("Verify: %v", err)
		}
	}
	if _, err := layout.Verify(t.Context(), store(t, "some/key", b.bytes), "some/key", nil); !errors.Is(err, pointer.ErrInvalid) {
		t.Errorf("Verify of a key that is none: %v", err)
	}
	if _, err := layout.Verify(t.Context(), memory.New(), b.key, nil); !errors.Is(err, blob.ErrNotFound) || errors.Is(err, layout.ErrDamaged) {
		t.Errorf("Verify of a blob that is not there: %v", err)
	}
	// The header of another blob.
	data := bytes.Clone(b.bytes)
	copy(data[16:], make([]byte, 16))
	id := blobID(5)
	copy(data[16:], id[:])
	if _, err := layout.Verify(t.Context(), store(t, b.key, reseal(data)), b.key, nil); !errors.Is(err, layout.ErrDamaged) || !strings.Contains(err.Error(), "header") {
		t.Errorf("Verify of a blob with another one's header: %v", err)
	}
}

// TestVerifyTruth: footers that do not tell the truth about the frames, all checksums being right.
func TestVerifyTruth(t *testing.T) {
	large, _ := sample(t)
	seq := describe(t, orders, 3, 1, frame(t, record.Envelope{
		Category: "orders.eu", Shard: 3, Sequenced: true, Producer: 9, Epoch: 1, FirstSequence: 10,
	}, "a", "b"))
	for name, change := range map[string]func(p *payload){
		"but the payload is of": func(p *payload) { p.entry.Category = "web.other" },
		"logical shard 0":       func(p *payload) { p.entry.Shard = record.MakeShardID(17, 1, 1) },
		"frames: the footer":    func(p *payload) { p.entry.Pointer.Frames = 1 },
		"messages":              func(p *payload) { p.entry.Pointer.Messages++ },
		"times":                 func(p *payload) { p.entry.Pointer.MinTime-- },
		"times: ":               func(p *payload) { p.entry.Pointer.MaxTime++ },
		"sequences":             func(p *payload) { p.entry.Pointer.Sequences = []pointer.Sequence{{Producer: 1, First: 1, Last: 2}} },
		"sequences: the": func(p *payload) {
			*p = seq
			p.entry.Pointer.Sequences = []pointer.Sequence{{Producer: 9, Epoch: 1, First: 10, Last: 12}}
		},
		"the frame is damage": func(p *payload) { p.frames = bytes.Clone(p.frames); p.frames[len(p.frames)-1] ^= 1 },
		"frame is damaged: r": func(p *payload) { p.frames = p.frames[:len(p.frames)-1] },
	} {
		p := large
		change(&p)
		b := assemble(t, layout.NewBuilder(blobID(0), 72, "", created), []payload{p})
		_, err := layout.Verify(t.Context(), store(t, b.key, b.bytes), b.key, nil)
		if !errors.Is(err, layout.ErrDamaged) || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), fmt.Sprintf("LSN %d", p.entry.LSN)) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// Runs may be cut in any way, and left out where nobody checks them.
	for _, runs := range [][]pointer.Sequence{
		nil,
		{{Producer: 9, Epoch: 1, First: 10, Last: 11}},
		{{Producer: 9, Epoch: 1, First: 11, Last: 11}, {Producer: 9, Epoch: 1, First: 10, Last: 10}},
	} {
		p := seq
		p.entry.Pointer.Sequences = runs
		b := assemble(t, layout.NewBuilder(blobID(0), 72, "", created), []payload{p})
		if _, err := layout.Verify(t.Context(), store(t, b.key, b.bytes), b.key, nil); err != nil {
			t.Errorf("runs %v: %v", runs, err)
		}
	}
}

// TestVerifyOverlap: two payloads that share bytes.
func TestVerifyOverlap(t *testing.T) {
	large, _ := sample(t)
	b := layout.NewBuilder(blobID(0), 72, "", created)
	n := b.AddBlock(pointer.CodecNone, large.frames, len(large.frames))
	b.AddPayload(n, 0, uint32(len(large.frames)), large.entry)
	again := large.entry
	again.LSN++
	b.AddPayload(n, 0, uint32(len(large.frames)), again)
	parts, err := b.Finish()
	if err != nil {
		t.Fatal(err)
	}
	key := pointer.Key(72, blobID(0))
	if _, err := layout.Verify(t.Context(), store(t, key, slices.Concat(parts...)), key, nil); !errors.Is(err, layout.ErrDamaged) || !strings.Contains(err.Error(), "in front of it") {
		t.Errorf("Verify: %v", err)
	}
}

// TestVerifyReportsAll: damage in several places is reported for each of them, to a limit.
func TestVerifyReportsAll(t *testing.T) {
	b := layout.NewBuilder(blobID(0), 72, "", created)
	var blocks [][]payload
	for i := range 300 {
		f := frame(t, record.Envelope{Category: "web.access", BaseTime: int64(i)}, strings.Repeat(fmt.Sprint(i), 50))
		blocks = append(blocks, []payload{describe(t, web, 1, record.LSN(i+1), f)})
	}
	out := assemble(t, b, blocks...)
	damage := func(numbers ...int) []byte {
		data := bytes.Clone(out.bytes)
		for _, i := range numbers {
			data[out.pointers[i].BlockOffset+3] ^= 1
		}
		return data
	}
	_, err := layout.Verify(t.Context(), store(t, out.key, damage(1, 7, 200)), out.key, nil)
	found := places(t, err)
	if len(found) != 3 || found[1].Offset != int64(out.pointers[7].BlockOffset) || found[2].What != "block 200 checksum" {
		t.Errorf("found %v", found)
	}
	var all []int
	for i := range 250 {
		all = append(all, i)
	}
	_, err = layout.Verify(t.Context(), store(t, out.key, damage(all...)), out.key, nil)
	if !strings.Contains(err.Error(), "150 more findings") || strings.Count(err.Error(), "\n") != 100 {
		t.Errorf("250 damaged blocks: %v", err)
	}
}

func TestReadBlockErrors(t *testing.T) {
	b := sampleBlob(t)
	s := store(t, b.key, b.bytes)
	p := b.pointers[0]
	p.BlockCRC++
	if _, err := layout.ReadBlock(t.Context(), s, &p); !errors.Is(err, layout.ErrDamaged) {
		t.Errorf("another checksum: %v", err)
	}
	p = b.pointers[0]
	p.BlockOffset = uint64(len(b.bytes)) - 1
	if _, err := layout.ReadBlock(t.Context(), s, &p); !errors.Is(err, layout.ErrDamaged) || !errors.Is(err, blob.ErrRange) {
		t.Errorf("behind the end: %v", err)
	}
	p = b.pointers[0]
	p.BlockLen = math.MaxUint32
	if _, err := layout.ReadBlock(t.Context(), s, &p); !errors.Is(err, pointer.ErrInvalid) {
		t.Errorf("a length over the limit: %v", err)
	}
	p = b.pointers[0]
	p.Class++
	if _, err := layout.ReadBlock(t.Context(), s, &p); !errors.Is(err, blob.ErrNotFound) || errors.Is(err, layout.ErrDamaged) {
		t.Errorf("no such blob: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := layout.ReadBlock(ctx, s, &b.pointers[0]); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

func TestDecompress(t *testing.T) {
	raw := bytes.Repeat([]byte("scribe "), 10_000)
	packed := compress(t, raw)
	buffer := make([]byte, 10, len(raw)+100)
	for codec, stored := range map[pointer.Codec][]byte{pointer.CodecNone: raw, pointer.CodecZstd: packed} {
		for _, dst := range [][]byte{nil, make([]byte, 5), buffer} {
			got, err := layout.Decompress(dst, codec, stored, len(raw))
			if err != nil || !bytes.Equal(got, raw) {
				t.Errorf("%v: %v", codec, err)
				continue
			}
			if &got[0] == &stored[0] {
				t.Errorf("%v: the block is in the memory of the stored bytes", codec)
			}
			if cap(dst) >= len(raw) && &got[0] != &dst[:1][0] {
				t.Errorf("%v: the memory that was given is not used", codec)
			}
		}
		for _, rawLen := range []int{len(raw) - 1, len(raw) + 1, 1, 0, -1, pointer.MaxBlockRaw + 1} {
			if _, err := layout.Decompress(nil, codec, stored, rawLen); !errors.Is(err, layout.ErrDamaged) {
				t.Errorf("%v as %d bytes: %v", codec, rawLen, err)
			}
		}
	}
	// Two frames back to back are one block.
	if got, err := layout.Decompress(nil, pointer.CodecZstd, slices.Concat(packed, packed), 2*len(raw)); err != nil || len(got) != 2*len(raw) {
		t.Errorf("two frames: %d bytes, %v", len(got), err)
	}
	for name, stored := range map[string][]byte{"empty": nil, "not zstd": raw[:100], "cut": packed[:len(packed)-1]} {
		if _, err := layout.Decompress(nil, pointer.CodecZstd, stored, len(raw)); !errors.Is(err, layout.ErrDamaged) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := layout.Decompress(nil, 9, raw, len(raw)); !errors.Is(err, layout.ErrDamaged) {
		t.Errorf("codec 9: %v", err)
	}
}

// TestBomb: a block that claims to be small and is not never takes more memory than was agreed.
func TestBomb(t *testing.T) {
	bomb := compress(t, make([]byte, 256<<20))
	if got, err := layout.Decompress(nil, pointer.CodecZstd, bomb, 1000); !errors.Is(err, layout.ErrDamaged) || cap(got) > 1000 {
		t.Errorf("%d bytes, %v", cap(got), err)
	}
}

func TestPayloadErrors(t *testing.T) {
	b := sampleBlob(t)
	p := b.pointers[0]
	if _, err := layout.Payload(make([]byte, p.BlockRawLen-1), &p); !errors.Is(err, layout.ErrDamaged) {
		t.Errorf("a block that is too short: %v", err)
	}
	p.Offset = math.MaxUint32
	if _, err := layout.Payload(make([]byte, p.BlockRawLen), &p); !errors.Is(err, layout.ErrDamaged) {
		t.Errorf("outside: %v", err)
	}
}

// TestLargeFooter: a footer that is longer than what is read at first.
func TestLargeFooter(t *testing.T) {
	var shared []payload
	for i := range 5_000 {
		category := fmt.Sprintf("trickle.%d", i%1_000)
		shared = append(shared, describe(t, record.MakeShardID(uint32(i%1_000), 0, 1), 1, record.LSN(i/1_000+1),
			frame(t, record.Envelope{Category: category, BaseTime: created + int64(i)}, "x")))
	}
	b := assemble(t, layout.NewBuilder(blobID(0), 72, "", created), shared)
	f, err := layout.ReadFooter(t.Context(), store(t, b.key, b.bytes), b.key)
	if err != nil {
		t.Fatal(err)
	}
	footer := len(b.bytes) - layout.TrailerLen - int(f.Blocks[0].Offset) - int(f.Blocks[0].Len)
	if footer < 64<<10 {
		t.Fatalf("the footer has %d bytes: too short for this test", footer)
	}
	t.Logf("%d bytes of footer a payload", footer/len(shared))
	if !reflect.DeepEqual(f.Entries, b.entries) {
		t.Error("entries differ")
	}
	if _, err := layout.Verify(t.Context(), store(t, b.key, b.bytes), b.key, nil); err != nil {
		t.Error(err)
	}
}

func TestBuilderErrors(t *testing.T) {
	large, shared := sample(t)
	n := uint32(len(large.frames))
	for want, use := range map[string]func(b *layout.Builder){
		"no payloads":            func(b *layout.Builder) { b.AddBlock(pointer.CodecNone, large.frames, len(large.frames)) },
		"there is no block 1":    func(b *layout.Builder) { b.AddPayload(1, 0, n, large.entry) },
		"there is no block -1":   func(b *layout.Builder) { b.AddPayload(-1, 0, n, large.entry) },
		"are not within":         func(b *layout.Builder) { b.AddPayload(0, 1, n, large.entry) },
		"a payload is not empty": func(b *layout.Builder) { b.AddPayload(0, 1, 0, large.entry) },
		"epoch 0":                func(b *layout.Builder) { e := large.entry; e.Epoch = 0; b.AddPayload(0, 0, n, e) },
		"LSN 0":                  func(b *layout.Builder) { e := large.entry; e.LSN = 0; b.AddPayload(0, 0, n, e) },
		"LSN 100 is there twice": func(b *layout.Builder) { b.AddPayload(0, 0, n, large.entry); b.AddPayload(0, 0, n, large.entry) },
		"category name":          func(b *layout.Builder) { e := large.entry; e.Category = "a b"; b.AddPayload(0, 0, n, e) },
		`"web.access" and`: func(b *layout.Builder) {
			b.AddPayload(0, 0, n, large.entry)
			e := shared[1].entry
			e.Category = "x"
			b.AddPayload(0, 0, n, e)
		},
		"its epoch begins at 101": func(b *layout.Builder) { e := large.entry; e.Start = 101; b.AddPayload(0, 0, n, e) },
		"the retention -1s": func(b *layout.Builder) {
			e := large.entry
			e.Settings = &layout.Settings{Retention: -time.Second}
			b.AddPayload(0, 0, n, e)
		},
		"build 1 without a run":    func(b *layout.Builder) { b.SetHistory(layout.History{Build: 1}) },
		"build 0 tells of 0":       func(b *layout.Builder) { b.SetHistory(layout.History{Run: 1}) },
		"build 5 tells of 5":       func(b *layout.Builder) { b.SetHistory(layout.History{Run: 1, Build: 5, Window: 5}) },
		"build 3000 tells of 1025": func(b *layout.Builder) { b.SetHistory(layout.History{Run: 1, Build: 3000, Window: 1025}) },
		"build 2 is an exception": func(b *layout.Builder) {
			b.SetHistory(layout.History{Run: 1, Build: 5, Window: 2, Exceptions: []layout.Exception{{Build: 2}}})
		},
		"build 4 is an exception of": func(b *layout.Builder) {
			b.SetHistory(layout.History{Run: 1, Build: 5, Window: 4, Exceptions: []layout.Exception{{Build: 4}, {Build: 4}}})
		},
		"in 0 frames":            func(b *layout.Builder) { e := large.entry; e.Pointer.Frames = 0; b.AddPayload(0, 0, n, e) },
		"codec":                  func(b *layout.Builder) { b.AddPayload(b.AddBlock(7, large.frames, 5), 0, 5, large.entry) },
		"raw bytes, the limits":  func(b *layout.Builder) { b.AddBlock(pointer.CodecZstd, large.frames, pointer.MaxBlockRaw+1) },
		"raw bytes, the limits ": func(b *layout.Builder) { b.AddBlock(pointer.CodecZstd, large.frames, -1) },
	} {
		b := layout.NewBuilder(blobID(0), 72, "", created)
		b.AddBlock(pointer.CodecNone, large.frames, len(large.frames))
		use(b)
		parts, err := b.Finish()
		if parts != nil || !errors.Is(err, layout.ErrInvalid) || !strings.Contains(err.Error(), strings.TrimSpace(want)) {
			t.Errorf("%s: %v", want, err)
		}
	}
	for want, b := range map[string]*layout.Builder{
		"UUID":   layout.NewBuilder(pointer.BlobID{}, 72, "", created),
		"region": layout.NewBuilder(blobID(0), 72, "no region", created),
	} {
		b.AddPayload(b.AddBlock(pointer.CodecNone, large.frames, len(large.frames)), 0, n, large.entry)
		if _, err := b.Finish(); !errors.Is(err, layout.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}

// TestTooMuch: a footer over its limit is refused by the writer, since no reader would take it.
func TestTooMuch(t *testing.T) {
	b := layout.NewBuilder(blobID(0), 72, "", created)
	raw := make([]byte, 2000)
	n := b.AddBlock(pointer.CodecNone, raw, len(raw))
	runs := make([]pointer.Sequence, 2000)
	for i := range runs {
		runs[i] = pointer.Sequence{Producer: uint64(i), First: math.MaxUint64 - 3, Last: math.MaxUint64 - 2}
	}
	for i := range 450 {
		b.AddPayload(n, uint32(i), 1, layout.Entry{
			Shard: web, Epoch: 1, LSN: record.LSN(i + 1), Category: "web.access",
			Pointer: pointer.Pointer{Frames: 1, Messages: 1, Sequences: runs},
		})
	}
	if b.Size() < layout.MaxFooter {
		t.Fatalf("%d bytes: too short for this test", b.Size())
	}
	if _, err := b.Finish(); !errors.Is(err, layout.ErrInvalid) || !strings.Contains(err.Error(), "limit") {
		t.Errorf("Finish: %v", err)
	}
}

// TestRoundTrip: whatever a writer may say of payloads is read as it was said.
func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		id := pointer.MakeBlobID(rapid.Int64().Draw(rt, "time"), [10]byte{})
		class, at := rapid.Uint32().Draw(rt, "class"), rapid.Int64().Draw(rt, "created")
		b := layout.NewBuilder(id, class, rapid.StringMatching(`([a-z][a-z0-9-]{0,20})?`).Draw(rt, "region"), at)
		var h layout.History
		if rapid.Bool().Draw(rt, "history") {
			h.Run, h.Build = rapid.Uint64Min(1).Draw(rt, "run"), rapid.Uint64Min(1).Draw(rt, "build")
			h.Window = rapid.Uint64Range(0, min(h.Build-1, layout.MaxWindow)).Draw(rt, "window")
			for build := h.Build - 1; build >= h.Build-h.Window && build > 0 && len(h.Exceptions) < 5; build -= rapid.Uint64Range(1, 9).Draw(rt, "back") {
				h.Exceptions = append(h.Exceptions, layout.Exception{Build: build, Void: rapid.Bool().Draw(rt, "void")})
				if build < 10 {
					break
				}
			}
		}
		b.SetHistory(h)
		settings := map[uint32]*layout.Settings{}
		var want []layout.Entry
		var blocks int
		next := map[record.ShardID]record.LSN{}
		for range rapid.IntRange(1, 5).Draw(rt, "blocks") {
			stored := rapid.SliceOfN(rapid.Byte(), 1, 50).Draw(rt, "stored")
			raw := rapid.IntRange(1, pointer.MaxBlockRaw).Draw(rt, "raw")
			n := b.AddBlock(pointer.CodecZstd, stored, raw)
			blocks++
			for range rapid.IntRange(1, 4).Draw(rt, "payloads") {
				category := rapid.Uint32Range(0, 3).Draw(rt, "category")
				e := layout.Entry{
					Shard:    record.MakeShardID(category*1_000_000_000, rapid.Uint16().Draw(rt, "logical"), rapid.Uint16().Draw(rt, "writer")),
					Epoch:    rapid.Uint64Min(1).Draw(rt, "epoch"),
					Category: fmt.Sprintf("category-%d", category),
				}
				next[e.Shard] += record.LSN(rapid.Uint64Range(1, 1<<60).Draw(rt, "LSN"))
				e.LSN = next[e.Shard]
				e.Start = record.LSN(rapid.Uint64Range(0, uint64(e.LSN)).Draw(rt, "start"))
				e.Predicted = rapid.Bool().Draw(rt, "predicted")
				if _, seen := settings[category]; !seen && rapid.Bool().Draw(rt, "settings") {
					settings[category] = &layout.Settings{
						Retention: time.Duration(rapid.Int64Range(1, math.MaxInt64/1000).Draw(rt, "retention")) * time.Microsecond, Shards: rapid.Uint32().Draw(rt, "shards"),
					}
				} else if !seen {
					settings[category] = nil
				}
				e.Settings = settings[category]
				p := &e.Pointer
				p.Frames = rapid.Uint32Min(1).Draw(rt, "frames")
				p.Messages = rapid.Uint32Min(p.Frames).Draw(rt, "messages")
				p.MinTime = rapid.Int64().Draw(rt, "min")
				p.MaxTime = rapid.Int64Min(p.MinTime).Draw(rt, "max")
				if rapid.Bool().Draw(rt, "sequenced") {
					p.Sequences = []pointer.Sequence{{Producer: rapid.Uint64().Draw(rt, "producer"), Epoch: 1, First: 5, Last: math.MaxUint64 - 1}}
				}
				offset := rapid.Uint32Range(0, uint32(raw)-1).Draw(rt, "offset")
				e.Pointer = b.AddPayload(n, offset, rapid.Uint32Range(1, uint32(raw)-offset).Draw(rt, "length"), e)
				want = append(want, e)
			}
		}
		size := b.Size()
		parts, err := b.Finish()
		if err != nil {
			rt.Fatal(err)
		}
		data := slices.Concat(parts...)
		if int64(len(data)) != size {
			rt.Fatalf("Size is %d, want %d", size, len(data))
		}
		key := pointer.Key(class, id)
		f, err := layout.ReadFooter(t.Context(), store(t, key, data), key)
		if err != nil {
			rt.Fatal(err)
		}
		if !reflect.DeepEqual(f.Entries, want) || !reflect.DeepEqual(f.History, h) || len(f.Blocks) != blocks || f.Created != at {
			rt.Fatalf("got  %s\nwant %+v", text(f), want)
		}
	})
}
