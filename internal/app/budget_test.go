package app

import (
	"testing"

	"scribe/internal/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

func TestBudget(t *testing.T) {
	b := &budget{limit: 100}
	first, err := b.admit(60)
	if err != nil {
		t.Fatal(err)
	}
	_, err = b.admit(60)
	if info := rpc.Info(err); info.GetReason() != scribev1.Reason_REASON_OVERLOADED || info.GetRetryAfter().AsDuration() <= 0 {
		t.Errorf("beyond the limit: %v", err)
	}
	first()
	first() // harmless
	second, err := b.admit(100)
	if err != nil {
		t.Errorf("after the release: %v", err)
	} else {
		second()
	}
	if n := b.used.Load(); n != 0 {
		t.Errorf("%d bytes are charged at the end", n)
	}
}
