package layout

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	"scribe/internal/format/pointer"
)

// FuzzFooter decodes what a faulty or hostile writer may have summed rightly.
//
//	go test ./storage/blob/layout -run '^$' -fuzz FuzzFooter -fuzztime 10s
func FuzzFooter(f *testing.F) {
	for _, name := range []string{"v1/plain.blob", "v1/zstd.blob", "v2/plain.blob", "v2/zstd.blob"} {
		data, err := os.ReadFile(filepath.Join("testdata", "golden", filepath.FromSlash(name)))
		if err != nil {
			f.Fatal(err)
		}
		end := len(data) - TrailerLen
		start := binary.LittleEndian.Uint64(data[end:])
		f.Add(data[end+16], data[start:end], start)
	}
	f.Fuzz(func(t *testing.T, version byte, b []byte, end uint64) {
		version = 1 + version%Version
		footer, bad := decodeFooter(version, b, end)
		if bad != nil {
			if bad.what == "" || bad.offset < 0 || bad.offset > len(b) {
				t.Fatalf("damage without a place: %+v", bad)
			}
			return
		}
		// Whatever is accepted can be written, in the same bytes if it is of the present version.
		out := NewBuilder(footer.ID, footer.Class, footer.Region, footer.Created)
		out.SetHistory(footer.History)
		at := map[uint64]int{}
		for i, v := range footer.Blocks {
			out.blockSection = append(out.blockSection, byte(v.Codec))
			out.blockSection = binary.AppendUvarint(out.blockSection, uint64(v.Len))
			out.blockSection = binary.AppendUvarint(out.blockSection, uint64(v.RawLen))
			out.blockSection = binary.LittleEndian.AppendUint32(out.blockSection, v.CRC)
			out.blocks = append(out.blocks, v)
			if v.Len > 0 {
				at[v.Offset] = i
			}
		}
		for _, e := range footer.Entries {
			if _, err := pointer.Decode(pointer.Append(nil, &e.Pointer)); err != nil {
				t.Fatalf("a pointer that can't be read: %v", err)
			}
			out.AddPayload(at[e.Pointer.BlockOffset], e.Pointer.Offset, e.Pointer.Length, e)
		}
		parts, err := out.Finish()
		if err != nil {
			t.Fatalf("what was read can't be written: %v", err)
		}
		again := parts[len(parts)-1]
		if again = again[:len(again)-TrailerLen]; version >= plainVersion && !bytes.Equal(again, b) {
			t.Fatalf("read %x, wrote %x", b, again)
		}
	})
}

// FuzzFixed decodes headers and trailers.
func FuzzFixed(f *testing.F) {
	f.Add(encodeHeader(blobIdentity{id: pointer.MakeBlobID(1, [10]byte{}), class: 72, region: "eu", created: 5}, Version), int64(1000))
	f.Add(encodeTrailer(blobTrailer{footerOffset: 900, footerLen: 68, footerCRC: 1}, Version), int64(1000))
	f.Fuzz(func(t *testing.T, b []byte, size int64) {
		if len(b) >= HeaderLen {
			v, version, bad := decodeHeader(b[:HeaderLen])
			if bad == nil && version <= Version && !bytes.Equal(encodeHeader(v, version), b[:HeaderLen]) {
				t.Fatalf("header %x is read as %+v", b[:HeaderLen], v)
			}
		}
		if len(b) >= TrailerLen {
			v, version, bad := decodeTrailer(b[:TrailerLen], size)
			if bad == nil && version <= Version && !bytes.Equal(encodeTrailer(v, version), b[:TrailerLen]) {
				t.Fatalf("trailer %x is read as %+v", b[:TrailerLen], v)
			}
		}
	})
}
