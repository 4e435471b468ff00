package blob_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"scribe/storage/blob"
)

// runSuite runs the acceptance suite of blob.Store: the promises that all engines make. Promises of single engines, such as surviving
// a crash, are tested in their packages. open returns a new, empty store for each test; the suite closes it.
func runSuite(t *testing.T, open func(t *testing.T) blob.Store) {
	t.Helper()
	for _, test := range []struct {
		name string
		run  func(t *testing.T, s *storeSuite)
	}{
		{"Parts", testParts},
		{"PartsAreTheCallers", testOwnership},
		{"Ranges", testRanges},
		{"RangeErrors", testRangeErrors},
		{"NotFound", testNotFound},
		{"FolderIsNoBlob", testFolder},
		{"Exists", testExists},
		{"SameKeyAtOnce", testSameKeyAtOnce},
		{"Identity", testIdentity},
		{"Stat", testStat},
		{"ListOrder", testListOrder},
		{"ListPrefix", testListPrefix},
		{"ListPages", testListPages},
		{"ListStops", testListStops},
		{"DeleteWhileListing", testDeleteWhileListing},
		{"Delete", testDelete},
		{"Concurrent", testConcurrent},
		{"Large", testLarge},
		{"InvalidKeys", testInvalidKeys},
		{"LongKey", testLongKey},
		{"EndedContext", testEndedContext},
		{"Close", testClose},
	} {
		t.Run(test.name, func(t *testing.T) {
			store := open(t)
			t.Cleanup(func() {
				if err := store.Close(); err != nil {
					t.Errorf("Close: %v", err)
				}
			})
			test.run(t, &storeSuite{T: t, store: store})
		})
	}
}

// storeSuite is a test and its store.
type storeSuite struct {
	*testing.T
	store blob.Store
}

func (s *storeSuite) mustPut(key string, parts ...[]byte) {
	s.Helper()
	if err := s.store.Put(s.Context(), key, parts...); err != nil {
		s.Fatalf("Put %s: %v", key, err)
	}
}

// expectBlob fails unless the blob under key is want.
func (s *storeSuite) expectBlob(key string, want []byte) {
	s.Helper()
	info, err := s.store.Stat(s.Context(), key)
	if err != nil {
		s.Fatalf("Stat %s: %v", key, err)
	}
	if info.Key != key || info.Size != int64(len(want)) {
		s.Fatalf("Stat %s: %+v, want %d bytes", key, info, len(want))
	}
	got := make([]byte, len(want))
	if err := s.store.ReadAt(s.Context(), key, got, 0); err != nil {
		s.Fatalf("ReadAt %s: %v", key, err)
	}
	if !bytes.Equal(got, want) {
		s.Fatalf("ReadAt %s: the bytes are not those that were put", key)
	}
}

func (s *storeSuite) expectError(what string, err, want error) {
	s.Helper()
	if !errors.Is(err, want) {
		s.Errorf("%s: %v, want %v", what, err, want)
	}
}

// listKeys returns the keys below prefix.
func (s *storeSuite) listKeys(prefix string) []string {
	s.Helper()
	var keys []string
	for info, err := range s.store.List(s.Context(), prefix) {
		if err != nil {
			s.Fatalf("List %q: %v", prefix, err)
		}
		keys = append(keys, info.Key)
	}
	return keys
}

func (s *storeSuite) expectList(prefix string, want ...string) {
	s.Helper()
	if got := s.listKeys(prefix); !slices.Equal(got, want) {
		s.Errorf("List %q:\n got %q\nwant %q", prefix, got, want)
	}
}

// randomBytes returns n bytes that can't be compressed or stored as zero pages.
func randomBytes(n int, seed uint64) []byte {
	b := make([]byte, n)
	source := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), 1})
	_, _ = source.Read(b) // never fails
	return b
}

func testParts(_ *testing.T, s *storeSuite) {
	small, big := randomBytes(10, 1), randomBytes(300_000, 2)
	for name, parts := range map[string][][]byte{
		"none":       nil,
		"one-empty":  {{}},
		"nil":        {nil, nil},
		"one":        {small},
		"one-byte":   {small[:1]},
		"some-empty": {nil, small, {}, big, nil, small, {}},
		"many-small": slices.Collect(slices.Chunk(big[:50_000], 7)),
		"mixed":      {big[:100_000], small, big[100_000:100_001], big[100_001:], small},
		"big":        {big, big, big},
	} {
		key := "parts/" + name
		s.mustPut(key, parts...)
		s.expectBlob(key, slices.Concat(parts...))
	}
}

func testOwnership(_ *testing.T, s *storeSuite) {
	parts := [][]byte{randomBytes(100_000, 1), randomBytes(50, 2), randomBytes(70_000, 3)}
	want := slices.Concat(parts...)
	s.mustPut("a", parts...)
	if !bytes.Equal(slices.Concat(parts...), want) {
		s.Error("Put changed the parts")
	}
	for _, p := range parts {
		clear(p)
	}
	s.expectBlob("a", want)
}

func testRanges(_ *testing.T, s *storeSuite) {
	data := randomBytes(10_000, 1)
	s.mustPut("a/b", data[:3_000], data[3_000:])
	for _, r := range [][2]int{{0, 1}, {0, 10_000}, {9_999, 1}, {2_999, 2}, {3_000, 7_000}, {5_000, 100}, {0, 0}, {500, 0}, {10_000, 0}} {
		dst := bytes.Repeat([]byte{0xEE}, r[1]+2)
		if err := s.store.ReadAt(s.Context(), "a/b", dst[1:1+r[1]], int64(r[0])); err != nil {
			s.Errorf("ReadAt %d bytes at %d: %v", r[1], r[0], err)
			continue
		}
		if !bytes.Equal(dst[1:1+r[1]], data[r[0]:r[0]+r[1]]) {
			s.Errorf("ReadAt %d bytes at %d: wrong bytes", r[1], r[0])
		}
		if dst[0] != 0xEE || dst[1+r[1]] != 0xEE {
			s.Errorf("ReadAt %d bytes at %d wrote outside dst", r[1], r[0])
		}
	}
}

func testRangeErrors(_ *testing.T, s *storeSuite) {
	s.mustPut("a", randomBytes(100, 1))
	s.mustPut("empty")
	for _, r := range []struct {
		key string
		n   int
		off int64
	}{
		{"a", 101, 0},
		{"a", 1, 100},
		{"a", 2, 99},
		{"a", 1, 1 << 40},
		{"a", 1, math.MaxInt64},
		{"a", 10, math.MaxInt64 - 5},
		{"a", 1, -1},
		{"a", 0, -1},
		{"a", 0, 101},
		{"a", 10, math.MinInt64},
		{"empty", 1, 0},
		{"empty", 1, 1},
	} {
		err := s.store.ReadAt(s.Context(), r.key, make([]byte, r.n), r.off)
		s.expectError(fmt.Sprintf("ReadAt %s: %d bytes at %d", r.key, r.n, r.off), err, blob.ErrRange)
	}
	if err := s.store.ReadAt(s.Context(), "empty", nil, 0); err != nil {
		s.Errorf("ReadAt nothing of an empty blob: %v", err)
	}
}

func testNotFound(_ *testing.T, s *storeSuite) {
	s.mustPut("a/b", []byte("x"))
	for _, key := range []string{"a/c", "b", "a/b0", "c/d/e"} {
		_, err := s.store.Stat(s.Context(), key)
		s.expectError("Stat "+key, err, blob.ErrNotFound)
		s.expectError("ReadAt "+key, s.store.ReadAt(s.Context(), key, make([]byte, 1), 0), blob.ErrNotFound)
		s.expectError("ReadAt nothing of "+key, s.store.ReadAt(s.Context(), key, nil, 0), blob.ErrNotFound)
	}
	s.expectList("c/")
	s.expectList("b")
}

func testFolder(_ *testing.T, s *storeSuite) {
	s.mustPut("a/b/c", []byte("x"))
	for _, key := range []string{"a", "a/b"} {
		_, err := s.store.Stat(s.Context(), key)
		s.expectError("Stat "+key, err, blob.ErrNotFound)
		s.expectError("ReadAt "+key, s.store.ReadAt(s.Context(), key, make([]byte, 1), 0), blob.ErrNotFound)
		s.expectError("ReadAt nothing of "+key, s.store.ReadAt(s.Context(), key, nil, 0), blob.ErrNotFound)
		if err := s.store.Delete(s.Context(), key); err != nil {
			s.Errorf("Delete %s: %v", key, err)
		}
	}
	s.expectList("", "a/b/c")
	// The folders are now empty. They are not blobs, and can be used again.
	if err := s.store.Delete(s.Context(), "a/b/c"); err != nil {
		s.Fatal(err)
	}
	if err := s.store.Delete(s.Context(), "a/b"); err != nil {
		s.Fatal(err)
	}
	s.expectList("")
	s.mustPut("a/b/d", []byte("y"))
	s.expectBlob("a/b/d", []byte("y"))
}

func testExists(_ *testing.T, s *storeSuite) {
	first := randomBytes(1000, 1)
	s.mustPut("a/b", first)
	s.expectError("second Put", s.store.Put(s.Context(), "a/b", randomBytes(10, 2)), blob.ErrExists)
	s.expectError("second Put of the same bytes", s.store.Put(s.Context(), "a/b", first), blob.ErrExists)
	s.expectError("second Put of nothing", s.store.Put(s.Context(), "a/b"), blob.ErrExists)
	s.expectBlob("a/b", first)
	s.mustPut("empty")
	s.expectError("second Put of an empty blob", s.store.Put(s.Context(), "empty", first), blob.ErrExists)
	s.expectBlob("empty", nil)
}

func testStat(_ *testing.T, s *storeSuite) {
	before := time.Now()
	s.mustPut("a/b", randomBytes(1234, 1))
	after := time.Now()
	info, err := s.store.Stat(s.Context(), "a/b")
	if err != nil {
		s.Fatal(err)
	}
	// The store may have a clock of its own, with a resolution of a second.
	const slack = 5 * time.Second
	if info.Modified.Before(before.Add(-slack)) || info.Modified.After(after.Add(slack)) {
		s.Errorf("Modified %v is not between %v and %v", info.Modified, before, after)
	}
	if info.Key != "a/b" || info.Size != 1234 {
		s.Errorf("Stat: %+v", info)
	}
	for listed, err := range s.store.List(s.Context(), "") {
		if err != nil {
			s.Fatal(err)
		}
		if listed.Key != info.Key || listed.Size != info.Size || listed.Modified.Sub(info.Modified).Abs() > slack {
			s.Errorf("List yields %+v, Stat %+v", listed, info)
		}
	}
}

func testDelete(_ *testing.T, s *storeSuite) {
	s.mustPut("a/b", []byte("x"))
	s.mustPut("a/c", []byte("y"))
	for range 2 {
		if err := s.store.Delete(s.Context(), "a/b"); err != nil {
			s.Fatalf("Delete: %v", err)
		}
	}
	if err := s.store.Delete(s.Context(), "never/there"); err != nil {
		s.Fatalf("Delete a blob that never was: %v", err)
	}
	_, err := s.store.Stat(s.Context(), "a/b")
	s.expectError("Stat", err, blob.ErrNotFound)
	s.expectError("ReadAt", s.store.ReadAt(s.Context(), "a/b", make([]byte, 1), 0), blob.ErrNotFound)
	s.expectBlob("a/c", []byte("y"))
	s.expectList("", "a/c")
}

func testLarge(_ *testing.T, s *storeSuite) {
	data := randomBytes(20<<20, 1)
	s.mustPut("large/one", data)
	s.expectBlob("large/one", data)
	// Parts like a batcher's: a small header, blocks, a footer.
	parts := [][]byte{data[:128]}
	parts = append(parts, slices.Collect(slices.Chunk(data[128:19<<20], 2<<20))...)
	parts = append(parts, data[19<<20:])
	s.mustPut("large/parts", parts...)
	s.expectBlob("large/parts", data)
	dst := make([]byte, 2<<20)
	if err := s.store.ReadAt(s.Context(), "large/parts", dst, 7<<20); err != nil {
		s.Fatal(err)
	}
	if !bytes.Equal(dst, data[7<<20:9<<20]) {
		s.Error("ReadAt in the middle: wrong bytes")
	}
}

// forEachMethod calls every method on a key.
func (s *storeSuite) forEachMethod(ctx context.Context, key string, check func(method string, err error)) {
	check("Put", s.store.Put(ctx, key, []byte("x")))
	check("ReadAt", s.store.ReadAt(ctx, key, make([]byte, 1), 0))
	check("ReadAt nothing", s.store.ReadAt(ctx, key, nil, 0))
	_, err := s.store.Stat(ctx, key)
	check("Stat", err)
	check("Delete", s.store.Delete(ctx, key))
}

func testInvalidKeys(_ *testing.T, s *storeSuite) {
	for _, key := range invalidKeys() {
		s.forEachMethod(s.Context(), key, func(method string, err error) {
			s.expectError(fmt.Sprintf("%s %q", method, key), err, blob.ErrInvalidKey)
		})
	}
	for _, prefix := range []string{"/", "..", "../", "a//", "a/./b", ".tmp", "a b", "a/../"} {
		calls := 0
		for _, err := range s.store.List(s.Context(), prefix) {
			calls++
			s.expectError(fmt.Sprintf("List %q", prefix), err, blob.ErrInvalidKey)
		}
		if calls != 1 {
			s.Errorf("List %q yields %d times, want one error", prefix, calls)
		}
	}
	s.expectList("")
}

func testLongKey(_ *testing.T, s *storeSuite) {
	part := string(bytes.Repeat([]byte("k"), blob.MaxKeyPart))
	key := part + "/" + part + "/"
	key += string(bytes.Repeat([]byte("e"), blob.MaxKey-len(key)))
	s.mustPut(key, []byte("x"))
	s.expectBlob(key, []byte("x"))
	s.expectList(part+"/", key)
	if err := s.store.Delete(s.Context(), key); err != nil {
		s.Fatal(err)
	}
	s.expectList("")
}

func testEndedContext(_ *testing.T, s *storeSuite) {
	s.mustPut("there", []byte("x"))
	cancelled, cancel := context.WithCancel(s.Context())
	cancel()
	expired, cancel := context.WithDeadline(s.Context(), time.Unix(1, 0))
	defer cancel()
	for want, ctx := range map[error]context.Context{context.Canceled: cancelled, context.DeadlineExceeded: expired} {
		for _, key := range []string{"there", "new"} {
			s.forEachMethod(ctx, key, func(method string, err error) { s.expectError(method+" "+key, err, want) })
		}
		calls := 0
		for _, err := range s.store.List(ctx, "") {
			calls++
			s.expectError("List", err, want)
		}
		if calls != 1 {
			s.Errorf("List yields %d times, want one error", calls)
		}
	}
	s.expectBlob("there", []byte("x"))
	s.expectList("", "there")
}

func testClose(_ *testing.T, s *storeSuite) {
	s.mustPut("a", []byte("x"))
	for range 2 {
		if err := s.store.Close(); err != nil {
			s.Fatalf("Close: %v", err)
		}
	}
	s.forEachMethod(s.Context(), "a", func(method string, err error) { s.expectError(method, err, blob.ErrClosed) })
	calls := 0
	for _, err := range s.store.List(s.Context(), "") {
		calls++
		s.expectError("List", err, blob.ErrClosed)
	}
	if calls != 1 {
		s.Errorf("List yields %d times, want one error", calls)
	}
}
