package record_test

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"scribe/internal/format/record"
)

var rewrite = flag.Bool("rewrite", false, "write testdata/golden and the seeds of testdata/fuzz anew")

// goldenFrame is a frame whose bytes are kept per version of the format.
type goldenFrame struct {
	name     string
	env      record.Envelope
	messages []record.Message
	arrow    []byte // body of an Arrow frame of rows rows
	rows     int
}

func goldenFrames() []goldenFrame {
	at := func(s string) time.Time {
		v, err := time.Parse(time.RFC3339Nano, s)
		if err != nil {
			panic(err)
		}
		return v
	}
	base := at("2024-02-29T12:00:00Z")
	return []goldenFrame{
		{
			name: "payloads",
			env:  record.Envelope{Category: "web.access", BaseTime: base.UnixMicro()},
			messages: []record.Message{
				{Payload: []byte("GET / HTTP/1.1")}, {Payload: []byte{}}, {Payload: bytes.Repeat([]byte{0xff}, 20)},
			},
		},
		{
			name: "everything",
			env: record.Envelope{
				Category: "Orders_eu-1.v2", Shard: 3, Atomic: true, Sequenced: true,
				Producer: 0x0123456789abcdef, Epoch: 7, FirstSequence: 1000, BaseTime: base.UnixMicro(), SampleRate: 10,
			},
			messages: []record.Message{
				{Payload: []byte("own time"), Time: base.Add(1500 * time.Microsecond)},
				{Payload: []byte("base time")},
				{Payload: []byte("earlier than the one before"), Time: base.Add(-time.Hour)},
				{Payload: []byte("key"), Key: []byte("customer-17")},
				{Payload: []byte("empty key"), Key: []byte{}},
				{Payload: []byte{}, Key: bytes.Repeat([]byte("k"), 200), Time: base},
				{
					Payload: []byte("attributes"),
					Attributes: []record.Attribute{
						{Name: "traceparent", Value: []byte("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")},
						{Name: "größe", Value: []byte{0, 1, 2}},
						{Name: "a", Value: nil},
						{Name: "a", Value: []byte("again")},
					},
				},
				{
					Payload: []byte("all"), Key: []byte("k"), Time: base.Add(time.Second),
					Attributes: []record.Attribute{{Name: "pii", Value: []byte("no")}},
				},
			},
		},
		{
			name: "extremes",
			env: record.Envelope{
				Category: "0" + strings.Repeat("z", record.MaxCategoryName-1), Shard: record.MaxLogicalShard,
				Sequenced: true, Producer: math.MaxUint64, Epoch: math.MaxUint32, FirstSequence: math.MaxUint64 - 2,
				BaseTime: math.MinInt64, SampleRate: math.MaxUint32,
			},
			// The first delta wraps around at 64 bits.
			messages: []record.Message{{Time: at("9999-12-31T23:59:59.999999Z")}, {Time: at("0001-01-01T00:00:00.000001Z")}},
		},
		{
			name:  "arrow",
			env:   record.Envelope{Category: "columns", Shard: 1, BaseTime: -1},
			arrow: []byte("an Arrow IPC stream is opaque here"), rows: 5,
		},
		{
			name:     "placed",
			env:      record.Envelope{Category: "clicks", Shard: 5, BaseTime: base.UnixMicro(), Placement: 0xabcdef},
			messages: []record.Message{{Payload: []byte("by key"), Key: []byte("user-17")}},
		},
	}
}

func (g *goldenFrame) encode(t testing.TB) []byte {
	t.Helper()
	if g.arrow == nil {
		return encode(t, nil, g.env, g.messages)
	}
	b, err := record.AppendArrowFrame(nil, g.env, g.rows, g.arrow)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestGolden reads the frames of every version that was ever written, and
// writes those of the current one, byte for byte.
func TestGolden(t *testing.T) {
	for _, g := range goldenFrames() {
		t.Run(g.name, func(t *testing.T) {
			version := "v1"
			if g.env.Placement != 0 {
				version = "v2"
			}
			path := filepath.Join("testdata", "golden", version, g.name+".hex")
			written := g.encode(t)
			if *rewrite {
				writeHex(t, path, written)
				writeSeeds(t, g.name, written)
			}
			golden := readHex(t, path)
			if !bytes.Equal(written, golden) {
				t.Errorf("the builder writes\n%s\nwant\n%s", hex.Dump(written), hex.Dump(golden))
			}

			h, err := record.Check(golden)
			if err != nil {
				t.Fatal(err)
			}
			if got := h.Envelope(); got != g.env {
				t.Errorf("envelope %+v, want %+v", got, g.env)
			}
			if h.Len != len(golden) || h.BodyOffset()+h.BodyLen() != len(golden) {
				t.Errorf("frame of %d + %d bytes, want %d", h.BodyOffset(), h.BodyLen(), len(golden))
			}
			if g.arrow != nil {
				if body := golden[h.BodyOffset():]; h.Encoding != record.EncodingArrow || h.Count != g.rows || !bytes.Equal(body, g.arrow) {
					t.Errorf("%s frame of %d rows, body %q", h.Encoding, h.Count, body)
				}
				return
			}
			_, records, err := decode(golden)
			if err != nil {
				t.Fatal(err)
			}
			same(t, g.env.BaseTime, g.messages, records)
		})
	}
}

func readHex(t testing.TB, path string) []byte {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var out []byte
	for lines := bufio.NewScanner(f); lines.Scan(); {
		b, err := hex.DecodeString(strings.ReplaceAll(lines.Text(), " ", ""))
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		out = append(out, b...)
	}
	return out
}

func writeHex(t testing.TB, path string, b []byte) {
	t.Helper()
	var text strings.Builder
	for len(b) > 0 {
		n := min(16, len(b))
		fmt.Fprintf(&text, "% x\n", b[:n])
		b = b[n:]
	}
	writeFile(t, path, text.String())
}

// writeSeeds keeps the seeds of the fuzz targets beside the golden frames.
func writeSeeds(t testing.TB, name string, frame []byte) {
	t.Helper()
	seed := func(target, args string) {
		writeFile(t, filepath.Join("testdata", "fuzz", target, "golden-"+name), "go test fuzz v1\n"+args)
	}
	repaired := fmt.Sprintf("[]byte(%q)\nbool(true)\n", frame)
	seed("FuzzParseHeader", repaired)
	seed("FuzzDecoder", repaired)
	seed("FuzzSplit", fmt.Sprintf("[]byte(%q)\nbool(true)\n", append(bytes.Clone(frame), frame...)))
	// Any bytes are a script of messages.
	seed("FuzzRoundTrip", fmt.Sprintf("[]byte(%q)\nint64(%d)\n", frame, len(frame)))
}

func writeFile(t testing.TB, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}
