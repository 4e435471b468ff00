package metalog_test

import (
	"context"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"scribe/internal/format/record"
	"scribe/internal/testkit/testclock"
	"scribe/storage/metalog"
	"scribe/storage/metalog/pebblelog"
	"scribe/storage/metalog/remote"
	"scribe/storage/metalog/replicated"
)

// TestReplicated runs the suite over three fronts of one engine: the first, which serves the reads, follows and is reached over
// HTTP; the second does not know the leader; the third leads.
func TestReplicated(t *testing.T) { runMost(t, replicatedLogs) }

func replicatedLogs(tb testing.TB) *logInstance {
	tb.Helper()
	fs := vfs.NewMem()
	clock := testclock.New()
	var engine *pebblelog.Engine
	var fronts []replicated.Replica
	open := func(tb testing.TB) metalog.Log {
		tb.Helper()
		e, err := pebblelog.Open("log", pebblelog.Options{FS: fs, Clock: clock.Now})
		if err != nil {
			tb.Fatal(err)
		}
		engine = e
		served := inMemory(tb, remote.NewServer(&followerFront{e, "http://third"}))
		fronts = []replicated.Replica{
			{URL: "http://first", Log: remote.NewClient(served)},
			{URL: "http://second", Log: &followerFront{e, ""}},
			{URL: "http://third/", Log: e},
		}
		log, err := replicated.New(fronts, replicated.Options{})
		if err != nil {
			tb.Fatal(err)
		}
		return log
	}
	log := open(tb)
	end := func(tb testing.TB) {
		tb.Helper()
		if err := fronts[0].Log.Close(); err != nil {
			tb.Errorf("close the client: %v", err)
		}
		if err := engine.Close(); err != nil {
			tb.Errorf("close the engine: %v", err)
		}
	}
	tb.Cleanup(func() { end(tb) })
	return &logInstance{log: log, clock: clock, restart: func(tb testing.TB) metalog.Log {
		tb.Helper()
		if err := log.Close(); err != nil {
			tb.Errorf("close the log: %v", err)
		}
		end(tb)
		log = open(tb)
		return log
	}}
}

// followerFront takes no writes.
type followerFront struct {
	metalog.Log
	leader string
}

func (f *followerFront) refuse() error { return &metalog.NotLeaderError{Leader: f.leader} }

func (f *followerFront) Open(context.Context, string, []record.ShardID) ([]metalog.State, error) {
	return nil, f.refuse()
}

func (f *followerFront) Append(context.Context, *metalog.Append) ([]metalog.Appended, error) {
	return nil, f.refuse()
}

func (f *followerFront) Trim(context.Context, record.ShardID, record.LSN) error { return f.refuse() }

func (f *followerFront) Seal(context.Context, record.ShardID) (metalog.State, error) {
	return metalog.State{}, f.refuse()
}

func (f *followerFront) Retire(context.Context, uint32) error { return f.refuse() }

func (f *followerFront) Erase(context.Context, uint32) error { return f.refuse() }

func (f *followerFront) AdvanceBoundary(context.Context, int64) (int64, error) { return 0, f.refuse() }

func (f *followerFront) Annotate(context.Context, []metalog.Annotation) (int, error) {
	return 0, f.refuse()
}
