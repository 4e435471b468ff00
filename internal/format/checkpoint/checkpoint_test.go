package checkpoint_test

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"flag"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"scribe/internal/format/checkpoint"
	"scribe/internal/format/record"
)

var rewrite = flag.Bool("rewrite", false, "write testdata/golden anew")

func shard(category uint32, logical, writer uint16) record.ShardID {
	return record.MakeShardID(category, logical, writer)
}

func goldens() map[string]checkpoint.Checkpoint {
	return map[string]checkpoint.Checkpoint{
		"empty": {Category: "a", CategoryID: 1},
		"usual": {
			Category: "web.access", CategoryID: 17, Watermark: 1_709_208_000_123_456,
			Positions: []checkpoint.Position{
				{Shard: shard(17, 0, 1), LSN: 4711}, {Shard: shard(17, 0, 2), LSN: 1}, {Shard: shard(17, 1, 1), LSN: 100_000, Skip: 1234},
			},
		},
		"extremes": {
			Category: "Z" + strings.Repeat("9", record.MaxCategoryName-1), CategoryID: math.MaxUint32, Watermark: math.MinInt64,
			Positions: []checkpoint.Position{
				{Shard: shard(math.MaxUint32, 0, 0), LSN: math.MaxUint64, Skip: math.MaxUint32},
				{Shard: shard(math.MaxUint32, math.MaxUint16, math.MaxUint16), LSN: math.MaxUint64, Skip: math.MaxUint32},
			},
		},
	}
}

func TestGolden(t *testing.T) {
	for name, c := range goldens() {
		path := filepath.Join("testdata", "golden", "v1", name+".txt")
		written := c.String() + "\n"
		if *rewrite {
			if err := os.WriteFile(path, []byte(written), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		golden, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if written != string(golden) {
			t.Errorf("%s: String is\n%swant\n%s", name, written, golden)
		}
		got, err := checkpoint.Parse(strings.TrimSuffix(string(golden), "\n"))
		if err != nil || !reflect.DeepEqual(got, c) {
			t.Errorf("%s: Parse returns %+v, %v\nwant %+v", name, got, err, c)
		}
		if err := c.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func drawCheckpoint(t *rapid.T) checkpoint.Checkpoint {
	c := checkpoint.Checkpoint{
		Category:   rapid.StringMatching(`[A-Za-z0-9][A-Za-z0-9._-]{0,40}`).Draw(t, "category"),
		CategoryID: rapid.Uint32().Draw(t, "id"),
		Watermark:  rapid.Int64().Draw(t, "watermark"),
	}
	shards := rapid.SliceOfNDistinct(rapid.Uint32(), 0, 20, rapid.ID).Draw(t, "shards")
	slices.Sort(shards)
	for _, s := range shards {
		c.Positions = append(c.Positions, checkpoint.Position{
			Shard: shard(c.CategoryID, uint16(s>>16), uint16(s)),
			LSN:   record.LSN(rapid.Uint64Min(1).Draw(t, "LSN")),
			Skip:  rapid.Uint32().Draw(t, "skip"),
		})
	}
	return c
}

func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := drawCheckpoint(t)
		if err := c.Validate(); err != nil {
			t.Fatal(err)
		}
		text := c.String()
		got, err := checkpoint.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, c) {
			t.Fatalf("got  %+v\nwant %+v", got, c)
		}
		// Safe in a shell, a file name and a URL.
		if rest := strings.Trim(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_."); rest != "" || !strings.HasPrefix(text, "scribe1.") {
			t.Fatalf("%q is not what it should be made of", text)
		}
		for _, p := range c.Positions {
			if q, ok := c.Position(p.Shard); !ok || q != p {
				t.Fatalf("Position of %v: %+v, %v", p.Shard, q, ok)
			}
		}
		if _, ok := c.Position(shard(c.CategoryID+1, 0, 0)); ok {
			t.Fatal("Position of a shard that is not there")
		}
	})
}

// TestEveryChange: a text that was changed in one byte, cut, or added to is an error.
func TestEveryChange(t *testing.T) {
	for name, c := range goldens() {
		good := c.String()
		refuse := func(what, text string) {
			t.Helper()
			got, err := checkpoint.Parse(text)
			if err == nil {
				t.Fatalf("%s: %s is read as %+v", name, what, got)
			}
			if !errors.Is(err, checkpoint.ErrCorrupt) && !errors.Is(err, checkpoint.ErrVersion) {
				t.Fatalf("%s: %s: an error that callers can't branch on: %v", name, what, err)
			}
		}
		for i := range good {
			for b := range 256 {
				if byte(b) != good[i] {
					refuse("a changed byte", good[:i]+string([]byte{byte(b)})+good[i+1:])
				}
			}
			refuse("a beginning", good[:i])
			refuse("an end", good[i+1:])
			refuse("a text without one byte", good[:i]+good[i+1:])
			for _, more := range []string{"\n", "\r", " ", "A", "=", "."} {
				refuse("a text with one byte more", good[:i]+more+good[i:])
			}
			if i > 0 && good[i] != good[i-1] {
				refuse("a text with two bytes swapped", good[:i-1]+good[i:i+1]+good[i-1:i]+good[i+1:])
			}
		}
		for _, more := range []string{"\n", "\r\n", " ", "A", "=", "=="} {
			refuse("a text with more at the end", good+more)
		}
		refuse("a text twice", good+good)
		refuse("another case", strings.ToLower(good)+"A")
	}
}

func TestOtherVersions(t *testing.T) {
	rest := strings.TrimPrefix(goldens()["usual"].String(), "scribe1.")
	for _, version := range []string{"2", "3", "10", "99"} {
		_, err := checkpoint.Parse("scribe" + version + "." + rest)
		if !errors.Is(err, checkpoint.ErrVersion) || errors.Is(err, checkpoint.ErrCorrupt) || !strings.Contains(err.Error(), version) {
			t.Errorf("version %s: %v", version, err)
		}
	}
	for _, text := range []string{"", "scribe", "scribe.", "scribe0.", "scribe01.", "scribex.", "scribe1", "Scribe1." + rest, "latest", "2024-02-29T12:00:00Z", "scribe9999999999."} {
		_, err := checkpoint.Parse(text)
		if !errors.Is(err, checkpoint.ErrCorrupt) || errors.Is(err, checkpoint.ErrVersion) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// text seals a body as a faulty writer would have.
func text(body []byte) string {
	b := binary.LittleEndian.AppendUint32(slices.Clip(body), record.CRC(append([]byte("scribe1."), body...)))
	return "scribe1." + base64.RawURLEncoding.EncodeToString(b)
}

func TestInvalid(t *testing.T) {
	at := func(p ...checkpoint.Position) checkpoint.Checkpoint {
		return checkpoint.Checkpoint{Category: "a", CategoryID: 5, Positions: p}
	}
	for what, c := range map[string]checkpoint.Checkpoint{
		"category":           {Category: "a b", CategoryID: 5},
		"category: empty":    {CategoryID: 5},
		"shard: foreign":     at(checkpoint.Position{Shard: shard(6, 0, 0), LSN: 1}),
		"shard: foreign low": at(checkpoint.Position{Shard: shard(4, 0, 0), LSN: 1}),
		"shard: order":       at(checkpoint.Position{Shard: shard(5, 1, 0), LSN: 1}, checkpoint.Position{Shard: shard(5, 0, 0), LSN: 1}),
		"shard: twice":       at(checkpoint.Position{Shard: shard(5, 1, 0), LSN: 1}, checkpoint.Position{Shard: shard(5, 1, 0), LSN: 2}),
		"LSN":                at(checkpoint.Position{Shard: shard(5, 1, 0)}),
		"positions":          at(make([]checkpoint.Position, checkpoint.MaxPositions+1)...),
	} {
		err := c.Validate()
		name, _, _ := strings.Cut(what, ":")
		if !errors.Is(err, checkpoint.ErrInvalid) || !strings.Contains(err.Error(), "invalid "+name) {
			t.Errorf("%s: Validate: %v", what, err)
		}
		// String has no error, so Parse must have one.
		if got, err := checkpoint.Parse(c.String()); !errors.Is(err, checkpoint.ErrCorrupt) {
			t.Errorf("%s: Parse: %+v, %v", what, got, err)
		}
	}
}

// TestLargest: the largest checkpoint fits the bound on the text.
func TestLargest(t *testing.T) {
	c := checkpoint.Checkpoint{Category: strings.Repeat("c", record.MaxCategoryName), CategoryID: math.MaxUint32, Watermark: math.MinInt64}
	for i := range uint64(checkpoint.MaxPositions) {
		c.Positions = append(c.Positions, checkpoint.Position{
			Shard: shard(math.MaxUint32, 0, 0) + record.ShardID(i*42_949), LSN: math.MaxUint64, Skip: math.MaxUint32,
		})
	}
	s := c.String()
	if len(s) > checkpoint.MaxText {
		t.Fatalf("%d bytes, the limit is %d", len(s), checkpoint.MaxText)
	}
	got, err := checkpoint.Parse(s)
	if err != nil || !reflect.DeepEqual(got, c) {
		t.Fatal(err)
	}
	if _, err := checkpoint.Parse("scribe1." + strings.Repeat("A", checkpoint.MaxText)); !errors.Is(err, checkpoint.ErrCorrupt) || !strings.Contains(err.Error(), "limit") {
		t.Errorf("a text that is too long: %v", err)
	}
}

// TestHostileCount: a count of positions that can't fit is refused before memory is spent on it.
func TestHostileCount(t *testing.T) {
	body := []byte{5, 1, 'a', 0, 0xa0, 0x8d, 0x06} // 100,000 positions
	s := text(body)
	if _, err := checkpoint.Parse(s); !errors.Is(err, checkpoint.ErrCorrupt) || !strings.Contains(err.Error(), "positions") {
		t.Errorf("Parse: %v", err)
	}
}

func FuzzParse(f *testing.F) {
	for _, c := range goldens() {
		b, err := base64.RawURLEncoding.DecodeString(strings.TrimPrefix(c.String(), "scribe1."))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b[:len(b)-4])
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		_, _ = checkpoint.Parse(string(body))
		s := text(body)
		c, err := checkpoint.Parse(s)
		if err != nil {
			if !errors.Is(err, checkpoint.ErrCorrupt) && !errors.Is(err, checkpoint.ErrVersion) {
				t.Fatalf("an error that callers can't branch on: %v", err)
			}
			return
		}
		if err := c.Validate(); err != nil {
			t.Fatalf("Parse accepts what Validate refuses: %v", err)
		}
		if again := c.String(); again != s {
			t.Fatalf("%s is written again as %s", s, again)
		}
	})
}
