package memory_test

import (
	"errors"
	"testing"

	"go.uber.org/goleak"

	"scribe/storage/blob"
	"scribe/storage/blob/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestLimit(t *testing.T) {
	s := memory.NewLimited(100)
	if err := s.Put(t.Context(), "a", make([]byte, 60)); err != nil {
		t.Fatal(err)
	}
	if err := s.Put(t.Context(), "b", make([]byte, 41)); !errors.Is(err, blob.ErrNoSpace) {
		t.Fatalf("Put over the limit: %v", err)
	}
	if err := s.Put(t.Context(), "b", make([]byte, 40)); err != nil {
		t.Fatalf("Put up to the limit: %v", err)
	}
	if err := s.Delete(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	if got := s.Bytes(); got != 40 {
		t.Fatalf("%d bytes are left, want 40", got)
	}
	if err := s.Put(t.Context(), "c", make([]byte, 60)); err != nil {
		t.Fatalf("Put into the space that is free again: %v", err)
	}
}
