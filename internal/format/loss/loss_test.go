package loss_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"scribe/internal/format/loss"
	"scribe/internal/format/record"
)

var rewrite = flag.Bool("rewrite", false, "write testdata/golden anew")

func golden() loss.Report {
	return loss.Report{
		Reason: "full", Messages: 1200, Frames: 3, Bytes: 98_765, Since: 1_709_208_000_000_000, Until: 1_709_208_000_900_000,
		By: loss.ByAgent, Run: "0123456789abcdef", Number: 7,
	}
}

// decode returns the only message of a frame.
func decode(t interface{ Fatal(...any) }, frame []byte) record.Record {
	var (
		d record.Decoder
		r record.Record
	)
	h, err := d.Reset(frame)
	if err != nil {
		t.Fatal(err)
	}
	if h.Count != 1 || h.Sequenced() || h.Atomic() || h.Len != len(frame) || !d.Next(&r) {
		t.Fatal("not a frame of one message", h, d.Err())
	}
	return r
}

func TestGolden(t *testing.T) {
	want := golden()
	frame, err := loss.AppendFrame(nil, "web.access", 3, 1_709_208_001_000_000, &want)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join("testdata", "golden", "v1", "report.hex")
	if *rewrite {
		if err := os.WriteFile(path, []byte(hex.EncodeToString(frame)+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	kept, err := hex.DecodeString(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(kept, frame) {
		t.Errorf("the frame is\n%x\nwant\n%x", frame, kept)
	}
	r := decode(t, kept)
	if got, ok := loss.Parse(r.Payload, r.Attributes); !ok || got != want {
		t.Errorf("Parse returns %+v, %v", got, ok)
	}
	if !strings.Contains(want.String(), "agent: full, 2024-02-29T12:00:00Z to 2024-02-29T12:00:00.9Z, report 0123456789abcdef/7") {
		t.Error(want.String())
	}
}

func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringMatching(`[a-z_]{1,64}`)
		want := loss.Report{
			Reason: text.Draw(t, "reason"), By: text.Draw(t, "by"), Run: text.Draw(t, "run"),
			Messages: rapid.Uint64Min(1).Draw(t, "messages"), Frames: rapid.Uint64().Draw(t, "frames"), Bytes: rapid.Uint64().Draw(t, "bytes"),
			Since: rapid.Int64().Draw(t, "since"), Until: rapid.Int64().Draw(t, "until"),
			AllShards: rapid.Bool().Draw(t, "all"), Number: rapid.Uint64().Draw(t, "number"),
		}
		frame, err := loss.AppendFrame(nil, "a", 0, 0, &want)
		if err != nil {
			t.Fatal(err)
		}
		r := decode(t, frame)
		if got, ok := loss.Parse(r.Payload, r.Attributes); !ok || got != want {
			t.Fatalf("got %+v, %v, want %+v", got, ok, want)
		}
	})
}

// TestOthers: what is not a report in every detail is none.
func TestOthers(t *testing.T) {
	report := golden()
	frame, err := loss.AppendFrame(nil, "a", 0, 0, &report)
	if err != nil {
		t.Fatal(err)
	}
	good := decode(t, frame)
	attributes := func(pairs ...string) record.Attributes {
		var b record.Builder
		m := record.Message{}
		for i := 0; i < len(pairs); i += 2 {
			m.Attributes = append(m.Attributes, record.Attribute{Name: pairs[i], Value: []byte(pairs[i+1])})
		}
		if err := errors.Join(b.Reset(nil, record.Envelope{Category: "a"}), b.Append(&m)); err != nil {
			t.Fatal(err)
		}
		out, err := b.Finish()
		if err != nil {
			t.Fatal(err)
		}
		return decode(t, out).Attributes
	}
	if _, ok := loss.Parse(good.Payload, attributes("x", "y", loss.Attribute, loss.Version)); !ok {
		t.Error("a report with another attribute is refused")
	}
	for name, c := range map[string]struct {
		payload    string
		attributes record.Attributes
	}{
		"no attribute":      {string(good.Payload), nil},
		"another attribute": {string(good.Payload), attributes("x", loss.Version)},
		"another version":   {string(good.Payload), attributes(loss.Attribute, "2")},
		"no JSON":           {"lost", good.Attributes},
		"nothing":           {"", good.Attributes},
		"cut":               {string(good.Payload[:len(good.Payload)-1]), good.Attributes},
		"more":              {string(good.Payload) + "{}", good.Attributes},
		"too long":          {string(good.Payload) + strings.Repeat(" ", loss.MaxPayload), good.Attributes},
		"no messages":       {strings.Replace(string(good.Payload), "1200", "0", 1), good.Attributes},
		"negative":          {strings.Replace(string(good.Payload), "1200", "-1", 1), good.Attributes},
		"no reason":         {strings.Replace(string(good.Payload), `"full"`, `""`, 1), good.Attributes},
	} {
		if got, ok := loss.Parse([]byte(c.payload), c.attributes); ok {
			t.Errorf("%s: %+v", name, got)
		}
	}
	for name, r := range map[string]loss.Report{
		"no messages": {Reason: "a", By: "b", Run: "c"},
		"no reason":   {Messages: 1, By: "b", Run: "c"},
		"a long run":  {Messages: 1, Reason: "a", By: "b", Run: strings.Repeat("c", loss.MaxText+1)},
	} {
		if b, err := loss.AppendFrame([]byte("x"), "a", 0, 0, &r); !errors.Is(err, loss.ErrInvalid) || string(b) != "x" {
			t.Errorf("%s: %q, %v", name, b, err)
		}
	}
	if _, err := loss.AppendFrame(nil, "a b", 0, 0, &report); !errors.Is(err, record.ErrInvalid) {
		t.Errorf("a bad category: %v", err)
	}
	plain := attributes("trace", "x")
	if n := testing.AllocsPerRun(100, func() { loss.Parse(good.Payload, plain) }); n != 0 {
		t.Errorf("looking at an ordinary message allocates %v times", n)
	}
}

func FuzzParse(f *testing.F) {
	report := golden()
	frame, err := loss.AppendFrame(nil, "a", 0, 0, &report)
	if err != nil {
		f.Fatal(err)
	}
	r := decode(f, frame)
	f.Add([]byte(r.Payload), []byte(r.Attributes))
	f.Fuzz(func(t *testing.T, payload, attributes []byte) {
		got, ok := loss.Parse(payload, record.Attributes(attributes))
		if !ok {
			return
		}
		if err := got.Validate(); err != nil {
			t.Fatalf("Parse accepts what Validate refuses: %v", err)
		}
		if _, err := loss.AppendFrame(nil, "a", 0, 0, &got); err != nil && !errors.Is(err, loss.ErrInvalid) {
			t.Fatal(err)
		}
	})
}
