package blob_test

import (
	"errors"
	"strings"
	"sync"
	"testing"

	"scribe/internal/base/entropy"
	"scribe/storage/blob"
	"scribe/storage/blob/memory"
)

// testIdentity: all who ask get one identity, whoever is first.
func testIdentity(_ *testing.T, s *storeSuite) {
	const askers = 8
	var (
		wg    sync.WaitGroup
		found [askers]string
		errs  [askers]error
		draws = new(entropy.Source)
	)
	for i := range askers {
		wg.Go(func() { found[i], errs[i] = blob.Identify(s.Context(), s.store, draws.Text) })
	}
	wg.Wait()
	for i, identity := range found {
		if errs[i] != nil || identity == "" || identity != found[0] {
			s.Errorf("asker %d is told %q, %v, another one %q", i, identity, errs[i], found[0])
		}
	}
	content, err := blob.EncodeIdentity(found[0])
	if err != nil {
		s.Fatal(err)
	}
	s.expectBlob(blob.IdentityKey, content)
}

// TestIdentityFormat pins the content of the object.
func TestIdentityFormat(t *testing.T) {
	const identity, golden = "ABCDEFGHIJKLMNOPQRSTUVWX27", "scribe-store 1 ABCDEFGHIJKLMNOPQRSTUVWX27\n"
	if got, err := blob.EncodeIdentity(identity); err != nil || string(got) != golden {
		t.Errorf("encoded as %q, %v", got, err)
	}
	if got, err := blob.DecodeIdentity([]byte(golden)); err != nil || got != identity {
		t.Errorf("decoded as %q, %v", got, err)
	}
	if _, err := blob.EncodeIdentity("short"); !errors.Is(err, blob.ErrIdentity) {
		t.Errorf("a short identity is encoded: %v", err)
	}
	for _, content := range []string{"", golden[:len(golden)-1], golden + "x", strings.Replace(golden, " 1 ", " 2 ", 1), strings.ToLower(golden), strings.Repeat("x", 10_000)} {
		store := memory.New()
		if err := store.Put(t.Context(), blob.IdentityKey, []byte(content)); err != nil {
			t.Fatal(err)
		}
		if got, err := blob.Identify(t.Context(), store, nil); !errors.Is(err, blob.ErrIdentity) {
			t.Errorf("%.50q is taken for %q, %v", content, got, err)
		}
	}
}

// FuzzIdentity: what is decoded is encoded as it was.
//
//	go test ./storage/blob -run '^$' -fuzz FuzzIdentity -fuzztime 10s
func FuzzIdentity(f *testing.F) {
	f.Add([]byte("scribe-store 1 ABCDEFGHIJKLMNOPQRSTUVWX27\n"))
	f.Add([]byte(nil))
	f.Fuzz(func(t *testing.T, content []byte) {
		identity, err := blob.DecodeIdentity(content)
		if err != nil {
			if !errors.Is(err, blob.ErrIdentity) {
				t.Error(err)
			}
			return
		}
		if again, err := blob.EncodeIdentity(identity); err != nil || string(again) != string(content) {
			t.Errorf("%q became %q, %v", content, again, err)
		}
	})
}
