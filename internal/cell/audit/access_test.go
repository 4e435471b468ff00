package audit_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"scribe/internal/cell/audit"
	"scribe/internal/transport/principal"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// startAccessTrail runs a trail that notes access to data in intervals. registry has its metrics.
func startAccessTrail(t *testing.T, s *trailStore, interval time.Duration) (trail *audit.Trail, registry *prometheus.Registry, end func()) {
	t.Helper()
	registry = prometheus.NewRegistry()
	trail, err := audit.New(audit.Config{Now: time.Now, AccessInterval: interval, Registerer: registry})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		trail.Run(ctx, audit.Deps{Write: s, Control: s, Process: "n1"})
	}()
	return trail, registry, func() { cancel(); <-ended }
}

// takeAccesses returns what was stored about access to data, in words and sorted.
func (s *trailStore) takeAccesses() []string {
	var lines []string
	for _, e := range s.take() {
		if e.Outcome == audit.Allowed {
			lines = append(lines, fmt.Sprintf("%s %s %s: %d calls, %d open, %d s", cmp.Or(e.Principal, "somebody"), e.Action, cmp.Or(e.Target, "something"), e.Calls, e.Open, e.Seconds))
		}
	}
	slices.Sort(lines)
	return lines
}

var bob = principal.Principal{Kind: principal.Client, Name: "bob"}

// TestAccess: an interval has one entry for each caller, action and category, which says for how many calls it stands; what goes on is said in each interval, and
// what has ended no more.
func TestAccess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const interval = 10 * time.Minute
		s := &trailStore{}
		trail, _, end := startAccessTrail(t, s, interval)
		defer end()
		began := time.Now()
		from := rpc.WithRemoteAddress(by(ada), "10.0.0.1:4000")
		for range 1000 {
			trail.CountAccess(from, "write", "web")
		}
		trail.CountAccess(by(ada), "write", "shop")
		trail.CountAccess(by(bob), "read", "web")
		release := trail.HoldAccess(by(bob), "read", "web")
		trail.CountAccess(by(principal.Principal{Kind: principal.Member, Name: "n2"}), "read", "web")
		trail.HoldAccess(by(principal.Principal{Kind: principal.Member, Name: "n2"}), "read", "web")()
		advance(interval - time.Second)
		if got := s.takeAccesses(); len(got) > 0 {
			t.Errorf("before the interval is over: %q", got)
		}
		advance(time.Second)
		s.mu.Lock()
		for i, e := range s.entries {
			if e.Target == "web" && e.Action == "write" && (e.Kind != "client" || e.Token != "t1" || e.Address != "10.0.0.1:4000" || e.Process != "n1" || e.ID == "" || !s.times[i].Equal(began.Truncate(time.Microsecond))) {
				t.Errorf("stored as %+v at %v", e, s.times[i])
			}
		}
		s.mu.Unlock()
		for i, want := range [][]string{
			{"ada write shop: 1 calls, 0 open, 600 s", "ada write web: 1000 calls, 0 open, 600 s", "bob read web: 1 calls, 1 open, 600 s"},
			{"bob read web: 0 calls, 1 open, 600 s"},
			{"ada write web: 1 calls, 0 open, 300 s", "bob read web: 0 calls, 1 open, 600 s"},
			nil,
		} {
			if got := s.takeAccesses(); !slices.Equal(got, want) {
				t.Errorf("interval %d: %q, want %q", i, got, want)
			}
			advance(interval / 2)
			if i == 1 {
				trail.CountAccess(by(ada), "write", "web")
				release()
				release()
			}
			advance(interval / 2)
		}
		var none *audit.Trail
		none.CountAccess(by(ada), "write", "web") // where nobody is asked who it is
		none.HoldAccess(by(ada), "read", "web")()
	})
}

// TestAccessOff: access to data is noted only if that is wanted.
func TestAccessOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &trailStore{}
		trail, end := startTrail(t, s)
		trail.CountAccess(by(ada), "write", "web")
		trail.HoldAccess(by(ada), "read", "web")()
		advance(48 * time.Hour)
		end()
		if got := s.take(); len(got) > 0 || trail.NotesAccess() {
			t.Errorf("stored is %+v", got)
		}
	})
}

// TestAccessAtTheEnd: a process that stops stores what it has counted.
func TestAccessAtTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &trailStore{}
		trail, _, end := startAccessTrail(t, s, time.Hour)
		trail.CountAccess(by(ada), "query", "web")
		advance(90 * time.Second)
		end()
		if got, want := s.takeAccesses(), []string{"ada query web: 1 calls, 0 open, 90 s"}; !slices.Equal(got, want) {
			t.Errorf("stored is %q, want %q", got, want)
		}
	})
}

// TestAccessBounds: who names ever new categories takes neither the memory nor the place of others in the trail, and no call is missing in the sum.
func TestAccessBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &trailStore{}
		trail, registry, end := startAccessTrail(t, s, time.Minute)
		defer end()
		const callers, names, ofCaller, ofAll = 7, 1500, 1000, 4999
		for c := range callers {
			who := by(principal.Principal{Kind: principal.Client, Name: fmt.Sprint("flood", c)})
			for i := range names {
				trail.CountAccess(who, "write", fmt.Sprint("c", i))
				trail.HoldAccess(who, "write", fmt.Sprint("c", i))()
			}
			if c == 0 {
				trail.CountAccess(by(bob), "read", "web")
				trail.CountAccess(by(bob), "read", strings.Repeat("n", 10<<20))
			}
		}
		trail.CountAccess(by(bob), "read", "web")
		advance(time.Minute)
		perCaller, sum := map[string]int{}, int64(0)
		for _, e := range s.take() {
			if len(e.Target) > 1000 {
				t.Errorf("a name of %d bytes is kept", len(e.Target))
			}
			perCaller[e.Principal]++
			if sum += e.Calls; e.Principal == "" && (e.Kind != "member" || e.Target != "" || e.Reason == "") {
				t.Errorf("the rest is told as %+v", e)
			}
		}
		if perCaller["flood0"] != ofCaller || perCaller["bob"] != 2 || perCaller[""] != 1 {
			t.Errorf("entries of callers: %v", perCaller)
		}
		const calls = callers*names + 3
		if sum != calls {
			t.Errorf("the entries stand for %d calls, want %d", sum, calls)
		}
		want := fmt.Sprintf("# HELP scribe_audit_accesses_left_out_total Calls for data that are in an entry without caller and category, since there were too many of those at once.\n"+
			"# TYPE scribe_audit_accesses_left_out_total counter\nscribe_audit_accesses_left_out_total %d\n", calls-ofAll-1)
		if err := testutil.GatherAndCompare(registry, strings.NewReader(want), "scribe_audit_accesses_left_out_total"); err != nil {
			t.Error(err)
		}
		// Their room is free again once nothing comes.
		advance(2 * time.Minute)
		s.take()
		for i := range ofCaller {
			trail.CountAccess(by(ada), "write", fmt.Sprint("c", i))
		}
		advance(time.Minute)
		if got := s.takeAccesses(); len(got) != ofCaller {
			t.Errorf("%d entries, want %d", len(got), ofCaller)
		}
	})
}

// TestAccessAway: while the trail can't be written, accesses go on counting in half of the room: there is some for what is done, and no call is missing afterwards.
func TestAccessAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &trailStore{err: errors.New("no write proxy")}
		trail, _, end := startAccessTrail(t, s, time.Minute)
		defer end()
		const intervals, names, done = 12, 900, 4900
		for range intervals {
			for i := range names {
				trail.CountAccess(by(ada), "write", fmt.Sprint("c", i))
			}
			advance(time.Minute)
		}
		for range done {
			trail.Note(by(bob), audit.Entry{Action: "create", Outcome: audit.Done})
		}
		s.fail(nil)
		advance(3 * time.Minute)
		var calls int64
		noted := 0
		for _, e := range s.take() {
			if calls += e.Calls; e.Action == "create" {
				noted++
			}
		}
		if calls != intervals*names || noted != done {
			t.Errorf("the entries stand for %d calls, want %d; %d of %d are noted of what was done", calls, intervals*names, noted, done)
		}
	})
}

// TestAccessTogether: calls that come while others are noted are in one interval or another.
func TestAccessTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &trailStore{}
		trail, _, end := startAccessTrail(t, s, time.Second)
		const callers, calls = 8, 500
		var all sync.WaitGroup
		for c := range callers {
			all.Go(func() {
				who := by(principal.Principal{Kind: principal.Client, Name: fmt.Sprint("c", c%4)})
				for i := range calls {
					trail.CountAccess(who, "read", fmt.Sprint(i%3))
					release := trail.HoldAccess(who, "read", fmt.Sprint(i%3))
					<-time.After(50 * time.Millisecond)
					release()
				}
			})
		}
		all.Wait()
		end()
		var sum int64
		for _, e := range s.take() {
			if sum += e.Calls; e.Open > e.Calls+2 { // of the two callers of the name, one call each may be of the interval before
				t.Errorf("%d calls, and %d were open", e.Calls, e.Open)
			}
		}
		if sum != callers*calls {
			t.Errorf("the entries stand for %d calls, want %d", sum, callers*calls)
		}
	})
}

// TestAccessColumns: a category that a process of before has created gets the columns of accesses, if they are noted; one whose schema takes no more is asked once.
func TestAccessColumns(t *testing.T) {
	const before = "fields:\n  - {name: id, type: string}\n"
	for name, c := range map[string]struct {
		schema   string
		interval time.Duration
		refusal  error
		want     int
	}{
		"of before":        {before, time.Minute, nil, 1},
		"changed":          {before, time.Minute, rpc.Errorf(scribev1.Reason_REASON_INCOMPATIBLE_SCHEMA, "a field is removed"), 1},
		"while it is away": {before, time.Minute, rpc.Errorf(scribev1.Reason_REASON_NO_BACKEND, "nobody leads"), 2},
		"without accesses": {before, 0, nil, 0},
		"of today":         {before + "  - {name: seconds, type: int64}\n", time.Minute, nil, 0},
		"without a schema": {"", time.Minute, nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &trailStore{stored: &scribev1.Category{Name: audit.Category, Schema: c.schema, Revision: 7}, refusal: c.refusal}
				trail, _, end := startAccessTrail(t, s, c.interval)
				for range 2 {
					trail.Note(by(ada), audit.Entry{Action: "create", Outcome: audit.Done})
					advance(10 * time.Second)
				}
				end()
				if got := s.take(); len(got) != 2 {
					t.Errorf("%d entries are stored, want two whatever the schema is", len(got))
				}
				if len(s.updates) != c.want {
					t.Fatalf("%d updates, want %d", len(s.updates), c.want)
				}
				for _, u := range s.updates {
					if u.GetName() != audit.Category || u.GetRevision() != 7 || !strings.Contains(u.GetSchema(), "{name: calls, type: int64}") || u.GetForceSchema() {
						t.Errorf("updated by %v", u)
					}
				}
			})
		})
	}
}
