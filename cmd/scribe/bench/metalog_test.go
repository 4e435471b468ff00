package bench

import (
	"context"
	"slices"
	"testing"

	"scribe/internal/format/record"
	"scribe/storage/metalog"
)

// trims notes to where logs are trimmed.
type trims struct {
	metalog.Log

	before []record.LSN
}

func (t *trims) Trim(_ context.Context, _ record.ShardID, before record.LSN) error {
	t.before = append(t.before, before)
	return nil
}

// TestTrimBehindWriter: each log keeps what is asked for, and is trimmed when it has a quarter more.
func TestTrimBehindWriter(t *testing.T) {
	for _, c := range []struct {
		keep int
		want []record.LSN // after 12 appends of 2 records each to two logs
	}{
		{keep: 0},
		{keep: 100},
		{keep: 8, want: []record.LSN{3, 3, 5, 5, 7, 7, 9, 9, 11, 11, 13, 13, 15, 15, 17, 17}},
		{keep: 16, want: []record.LSN{5, 5, 9, 9}},
	} {
		var log trims
		run := &metalogRun{MetalogOptions: MetalogOptions{Keep: c.keep}, log: &log}
		logs := writerLogs{shards: make([]record.ShardID, 2), added: 2}
		for range 12 {
			if err := logs.trimBehind(t.Context(), run); err != nil {
				t.Fatal(err)
			}
		}
		if !slices.Equal(log.before, c.want) {
			t.Errorf("keep %d: trimmed before %v, want %v", c.keep, log.before, c.want)
		}
	}
}
