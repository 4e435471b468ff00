package pointer_test

import (
	"bytes"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"scribe/internal/format/pointer"
)

func TestNewBlobID(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ids []pointer.BlobID
		var times []int64
		for range 100 {
			ids = append(ids, pointer.NewBlobID())
			times = append(times, time.Now().UnixMicro())
			<-time.After(1500 * time.Microsecond)
		}
		for i, id := range ids {
			if got, want := id.Time(), times[i]/1000*1000; got != want {
				t.Errorf("Time is %d, want %d", got, want)
			}
			if !id.IsValid() {
				t.Errorf("%v is not valid", id)
			}
		}
		if !slices.IsSortedFunc(ids, func(a, b pointer.BlobID) int { return bytes.Compare(a[:], b[:]) }) {
			t.Error("ids are not in the order of their times")
		}
		if !slices.IsSortedFunc(ids, func(a, b pointer.BlobID) int { return strings.Compare(a.String(), b.String()) }) {
			t.Error("texts are not in the order of their times")
		}
	})
	seen := map[pointer.BlobID]bool{}
	for range 10_000 {
		seen[pointer.NewBlobID()] = true
	}
	if len(seen) != 10_000 {
		t.Errorf("%d different ids of 10,000", len(seen))
	}
}

// TestUUID compares with another implementation of RFC 9562.
func TestUUID(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		micros := rapid.Int64Range(0, 1<<48*1000-1).Draw(t, "time")
		id := pointer.MakeBlobID(micros, [10]byte(rapid.SliceOfN(rapid.Byte(), 10, 10).Draw(t, "entropy")))
		u := uuid.UUID(id)
		if u.Version() != 7 || u.Variant() != uuid.RFC4122 || u.String() != id.String() {
			t.Fatalf("%v: version %d, variant %v; %v", u, u.Version(), u.Variant(), id)
		}
		if id.Time() != micros/1000*1000 {
			t.Fatalf("Time is %d, want %d", id.Time(), micros/1000*1000)
		}
		parsed, err := pointer.ParseBlobID(id.String())
		if err != nil || parsed != id {
			t.Fatalf("ParseBlobID: %v, %v", parsed, err)
		}
	})
	for micros, want := range map[int64]int64{-1: 0, math.MinInt64: 0, math.MaxInt64: (1<<48 - 1) * 1000} {
		if got := pointer.MakeBlobID(micros, [10]byte{}).Time(); got != want {
			t.Errorf("time %d becomes %d, want %d", micros, got, want)
		}
	}
}

func TestParseBlobID(t *testing.T) {
	good := id().String()
	if good != "018df4bc-567b-7abc-9ef0-010203040506" {
		t.Errorf("the text of the id is %s", good)
	}
	for _, text := range []string{
		"", good[:35], good + "0", strings.Repeat("0", 36), strings.Repeat("-", 36), "0" + good[:8] + good[9:], strings.ToUpper(good), strings.ReplaceAll(good, "-", ""), "{" + good + "}", "urn:uuid:" + good,
		"018df4bc5-67b-7abc-9ef0-010203040506", "018df4bc-567b-7abc-9ef0-01020304050g", "018df4bc-567b-7abc-9ef0-0102030405-6",
		"018df4bc-567b-4abc-9ef0-010203040506", "018df4bc-567b-7abc-1ef0-010203040506", "00000000-0000-0000-0000-000000000000",
	} {
		if _, err := pointer.ParseBlobID(text); !errors.Is(err, pointer.ErrInvalid) {
			t.Errorf("ParseBlobID %q: %v", text, err)
		}
	}
}

func TestKey(t *testing.T) {
	p := small()
	if want := "blobs/72h/018df4bc-567b-7abc-9ef0-010203040506"; p.Key() != want {
		t.Errorf("Key is %s, want %s", p.Key(), want)
	}
	for _, class := range []uint32{0, 1, 72, math.MaxUint32} {
		c, i, err := pointer.ParseKey(pointer.Key(class, id()))
		if err != nil || c != class || i != id() {
			t.Errorf("ParseKey of class %d: %d, %v, %v", class, c, i, err)
		}
	}
	text := id().String()
	for _, key := range []string{
		"", "blobs", "blobs/", "blobs/72h", "blobs/72h/", "blobs/h/" + text, "blobs/72/" + text, "blobs/072h/" + text, "blobs/+72h/" + text,
		"blobs/-1h/" + text, "blobs/4294967296h/" + text, "blob/72h/" + text, "/blobs/72h/" + text, "blobs/72h/" + text + "/", "blobs/72h/x" + text[1:],
		"blobs/72h//" + text, " blobs/72h/" + text, "blobs/72h/" + strings.ToUpper(text), "blobs/7 2h/" + text,
	} {
		if _, _, err := pointer.ParseKey(key); !errors.Is(err, pointer.ErrInvalid) {
			t.Errorf("ParseKey %q: %v", key, err)
		}
	}
}

func FuzzParseKey(f *testing.F) {
	f.Add("blobs/72h/018df4bc-567b-7abc-9ef0-010203040506")
	f.Add("blobs/0h/")
	f.Fuzz(func(t *testing.T, key string) {
		class, id, err := pointer.ParseKey(key)
		if err != nil {
			if !errors.Is(err, pointer.ErrInvalid) {
				t.Fatal(err)
			}
			return
		}
		if again := pointer.Key(class, id); again != key {
			t.Fatalf("%q is read as %q", key, again)
		}
	})
}

func TestValidateRegion(t *testing.T) {
	for _, name := range []string{"", "a", "eu-west-1", "EU_1.x", strings.Repeat("r", 64)} {
		if err := pointer.ValidateRegion(name); err != nil {
			t.Error(err)
		}
	}
	for _, name := range []string{"-a", ".a", "a b", "a/b", "ä", "a\n", strings.Repeat("r", 65)} {
		if err := pointer.ValidateRegion(name); !errors.Is(err, pointer.ErrInvalid) {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func TestCodecString(t *testing.T) {
	for c, want := range map[pointer.Codec]string{pointer.CodecNone: "none", pointer.CodecZstd: "zstd", 9: "codec(9)"} {
		if got := c.String(); got != want {
			t.Errorf("codec %d is %q, want %q", uint8(c), got, want)
		}
	}
}
