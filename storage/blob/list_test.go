package blob_test

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sync/errgroup"

	"scribe/storage/blob"
)

// invalidKeys are keys that every store must refuse.
func invalidKeys() []string {
	return []string{
		"", "/", "a/", "/a", "a//b", ".", "..", "a/.", "a/..", "../a", "a/../b", ".hidden", "a/.tmp", "-a", "_a", "a b", "a\\b", "a\x00", "ä",
		"a\n", "a:b", "a*", "a?b", "a%2fb", "a/b/",
		strings.Repeat("a", blob.MaxKeyPart+1),
		strings.Repeat("aaaa/", blob.MaxKey/5) + "b",
	}
}

// parallel bounds the concurrent calls of a test.
const parallel = 8

// putAll puts a blob of one byte under each key.
func (s *storeSuite) putAll(keys []string) {
	s.Helper()
	g, ctx := errgroup.WithContext(s.Context())
	g.SetLimit(parallel)
	for _, key := range keys {
		g.Go(func() error { return s.store.Put(ctx, key, []byte("x")) })
	}
	if err := g.Wait(); err != nil {
		s.Fatal(err)
	}
}

// trickyKeys are keys in the order of their bytes, which is not the order of a walk through folders: '-' and '.' come before '/'.
func trickyKeys() []string {
	return []string{
		"A/b", "a-/x", "a-1", "a-1.b", "a.b/c", "a.b/d-/e", "a.b/d/e", "a.b/d0", "a.c", "a/0", "a/b-c", "a/b/c", "a/b0", "a0/x", "a_/z", "ab", "b/a-/1", "b/a.1", "b/a/1", "b/a0",
	}
}

func testListOrder(_ *testing.T, s *storeSuite) {
	keys := trickyKeys()
	if !slices.IsSorted(keys) {
		s.Fatal("the keys of this test are not sorted")
	}
	s.putAll(keys)
	s.expectList("", keys...)
}

func testListPrefix(_ *testing.T, s *storeSuite) {
	keys := trickyKeys()
	s.putAll(keys)
	prefixes := []string{"a", "a/", "a-", "a-1", "a-1.", "a.", "a.b", "a.b/", "a.b/d", "a.b/d/", "a.b/d-", "b/a", "b/a/", "b/a.1", "c", "ab", "abc", "b/", "b/b", "A", "a/b/c/d"}
	for _, prefix := range prefixes {
		var want []string
		for _, key := range keys {
			if strings.HasPrefix(key, prefix) {
				want = append(want, key)
			}
		}
		s.expectList(prefix, want...)
	}
}

// testListPages lists more than the 1,000 blobs that one answer of S3 holds.
func testListPages(_ *testing.T, s *storeSuite) {
	keys := make([]string, 1_050)
	for i := range keys {
		keys[i] = fmt.Sprintf("blobs/%dh/%04d", 24+i%2, i)
	}
	s.putAll(keys)
	slices.Sort(keys)
	s.expectList("blobs/", keys...)
	s.expectList("blobs/25h/", keys[525:]...)
}

func testListStops(_ *testing.T, s *storeSuite) {
	s.putAll(trickyKeys())
	var keys []string
	for info, err := range s.store.List(s.Context(), "") {
		if err != nil {
			s.Fatal(err)
		}
		keys = append(keys, info.Key)
		if len(keys) == 6 {
			break
		}
	}
	if !slices.Equal(keys, trickyKeys()[:6]) {
		s.Errorf("the first ones are %q", keys)
	}
	// A sequence can be run again.
	sequence := s.store.List(s.Context(), "a.b/")
	for range 2 {
		n := 0
		for _, err := range sequence {
			if err != nil {
				s.Fatal(err)
			}
			n++
		}
		if n != 4 {
			s.Errorf("yields %d blobs, want 4", n)
		}
	}
}

// testDeleteWhileListing deletes during a listing, as retention does.
func testDeleteWhileListing(_ *testing.T, s *storeSuite) {
	keys := trickyKeys()
	s.putAll(keys)
	var seen []string
	for info, err := range s.store.List(s.Context(), "") {
		if err != nil {
			s.Fatal(err)
		}
		seen = append(seen, info.Key)
		if err := s.store.Delete(s.Context(), info.Key); err != nil {
			s.Fatal(err)
		}
	}
	if !slices.Equal(seen, keys) {
		s.Errorf("yields\n%q, want\n%q", seen, keys)
	}
	s.expectList("")
}

func testSameKeyAtOnce(_ *testing.T, s *storeSuite) {
	const writers = 8
	for round := range 5 {
		key := fmt.Sprintf("race/%d", round)
		var (
			wg   sync.WaitGroup
			errs [writers]error
		)
		for i := range writers {
			wg.Go(func() { errs[i] = s.store.Put(s.Context(), key, randomBytes(5_000, uint64(i)), []byte{byte(i)}) })
		}
		wg.Wait()
		winner := -1
		for i, err := range errs {
			switch {
			case err == nil && winner >= 0:
				s.Errorf("round %d: writers %d and %d both succeeded", round, winner, i)
			case err == nil:
				winner = i
			case !errors.Is(err, blob.ErrExists):
				s.Errorf("round %d: writer %d: %v, want %v", round, i, err, blob.ErrExists)
			}
		}
		if winner < 0 {
			s.Fatalf("round %d: nobody succeeded", round)
		}
		s.expectBlob(key, append(randomBytes(5_000, uint64(winner)), byte(winner)))
	}
}

func testConcurrent(_ *testing.T, s *storeSuite) {
	g, ctx := errgroup.WithContext(s.Context())
	for worker := range parallel {
		g.Go(func() error {
			for i := range 10 {
				key := fmt.Sprintf("blobs/%d/%d-%d", worker%3, worker, i)
				want := randomBytes(1+worker*10_000+i*100, uint64(worker*100+i))
				if err := s.store.Put(ctx, key, want[:1], want[1:]); err != nil {
					return err
				}
				got := make([]byte, len(want))
				if err := s.store.ReadAt(ctx, key, got, 0); err != nil {
					return err
				}
				if !bytes.Equal(got, want) {
					return fmt.Errorf("%s: wrong bytes", key)
				}
				for _, err := range s.store.List(ctx, fmt.Sprintf("blobs/%d/", worker%3)) {
					if err != nil {
						return err
					}
				}
				if i%2 == 0 {
					if err := s.store.Delete(ctx, key); err != nil {
						return err
					}
				}
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		s.Fatal(err)
	}
	if n := len(s.listKeys("")); n != parallel*10/2 {
		s.Errorf("%d blobs are left, want %d", n, parallel*10/2)
	}
}
