package main

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// trimmedLog is a log of which retention removes a part once it was listed.
type trimmedLog struct {
	rpc.MetalogService
	listed int
	// removed says that retention has taken it off the list, as nothing was left.
	removed bool
}

// trimmedTo is where it begins then, trimmedNext is its end.
const (
	trimmedTo   = 5
	trimmedNext = 7
)

func (l *trimmedLog) ListShards(context.Context, *scribev1.ListShardsRequest) (*scribev1.ListShardsResponse, error) {
	first := uint64(1)
	switch l.listed++; {
	case l.listed > 1 && l.removed:
		return &scribev1.ListShardsResponse{}, nil
	case l.listed > 1:
		first = trimmedTo
	}
	return &scribev1.ListShardsResponse{States: []*scribev1.ShardState{{FirstLsn: first, NextLsn: trimmedNext}}}, nil
}

func (l *trimmedLog) Read(_ context.Context, req *scribev1.ReadRequest) (*scribev1.ReadResponse, error) {
	if req.GetFrom() < trimmedTo {
		return nil, rpc.Errorf(scribev1.Reason_REASON_TRIMMED, "LSN %d was trimmed", req.GetFrom())
	}
	return &scribev1.ReadResponse{Entries: []*scribev1.Entry{{Lsn: req.GetFrom()}}}, nil
}

// TestInspectTrimmedLog: what retention removes while a log is shown is left out, and is no error.
func TestInspectTrimmedLog(t *testing.T) {
	var out, notes bytes.Buffer
	l := &logInspector{metalog: &trimmedLog{}, category: "access", stdout: &out, stderr: &notes}
	states, err := l.listShards(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := l.inspectShard(t.Context(), states[0]); err != nil {
		t.Fatal(err)
	}
	if l.pointers != trimmedNext-trimmedTo || strings.Contains(notes.String(), "stands where") {
		t.Errorf("%d pointers, want %d:\n%s", l.pointers, trimmedNext-trimmedTo, notes.Bytes())
	}
	l = &logInspector{metalog: &trimmedLog{listed: 1, removed: true}, category: "access", stdout: &out, stderr: &notes}
	if err := l.inspectShard(t.Context(), states[0]); err != nil || l.pointers != 0 {
		t.Errorf("a log that was removed meanwhile: %d pointers, %v", l.pointers, err)
	}
}
