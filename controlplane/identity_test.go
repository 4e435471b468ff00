package controlplane

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/kv"
	"scribe/storage/kv/memkv"
)

// neighbourhood is who serves where, as a control plane finds out. An address that is not in it refuses connections.
type neighbourhood map[string]string

// silent marks an address that does not answer.
const silent = "silent"

func (n neighbourhood) probe(ctx context.Context, url string) (string, error) {
	switch incarnation, served := n[url]; {
	case !served:
		return "", fmt.Errorf("dial: %w", syscall.ECONNREFUSED)
	case incarnation == silent:
		<-ctx.Done()
		return "", ctx.Err()
	default:
		return incarnation, nil
	}
}

// joinAs joins as a start of a process with the id "m".
func joinAs(t *testing.T, c *ControlPlane, url, incarnation, store string) (*scribev1.Member, error) {
	t.Helper()
	resp, err := c.Join(t.Context(), &scribev1.JoinRequest{
		Member: &scribev1.Member{Id: "m", Roles: []scribev1.Role{scribev1.Role_ROLE_BATCHER}, Url: url, Incarnation: incarnation, Store: store},
		Ttl:    durationpb.New(10 * time.Second),
	})
	return resp.GetMember(), err
}

// beatAs sends the heartbeat of a start of the process "m".
func beatAs(t *testing.T, c *ControlPlane, incarnation, store string) error {
	t.Helper()
	_, err := c.Heartbeat(t.Context(), &scribev1.HeartbeatRequest{Id: "m", Incarnation: incarnation, Store: store})
	return err
}

// wantRefusal fails unless err refuses the member, for good or for now, and names everything of texts.
func wantRefusal(t *testing.T, err error, forGood bool, texts ...string) {
	t.Helper()
	wantReason(t, err, scribev1.Reason_REASON_MEMBER_REFUSED, texts...)
	if after := rpc.Info(err).GetRetryAfter().AsDuration(); (after == 0) != forGood {
		t.Errorf("to be tried again after %v: %v", after, err)
	}
}

// TestSecondProcess: while a process lives, another one with its id is refused, and told which and what to do. It gets the id when the first one is certain not to run
// any more, and then the first one is refused.
func TestSecondProcess(t *testing.T) {
	const first, second = "http://first:1", "http://second:1"
	for _, c := range []struct {
		name string
		// around is who serves where when the second process joins at its address.
		around neighbourhood
		at     string
		// admitted says that it joins at once, refused that it is refused for good, and neither that it has to wait for the end of the lease.
		admitted, refused bool
	}{
		{"beside the first", neighbourhood{first: "a", second: "b"}, second, false, true},
		{"with the address of the first", neighbourhood{first: "a"}, first, false, true},
		{"after the first has ended", neighbourhood{second: "b"}, second, true, false},
		{"as the first one's successor at its address", neighbourhood{first: "b"}, first, true, false},
		{"as a successor at an address that does not answer yet", neighbourhood{first: silent}, first, true, false},
		{"while another process is at the address of the first", neighbourhood{first: "c", second: "b"}, second, true, false},
		{"while the first does not answer", neighbourhood{first: silent, second: "b"}, second, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				around := neighbourhood{first: "a"}
				store := memkv.New()
				plane := run(t, store, func(_ *Config, d *Deps) {
					d.Probe = func(ctx context.Context, url string) (string, error) { return around.probe(ctx, url) }
				})
				defer func() { stop(t, plane) }()
				m, err := joinAs(t, plane, first, "a", "")
				if err != nil {
					t.Fatal(err)
				}
				around = c.around
				again, err := joinAs(t, plane, c.at, "b", "")
				switch {
				case c.admitted:
					if err != nil || again.GetSlot() != m.GetSlot() {
						t.Fatalf("slot %d in place of %d, %v", again.GetSlot(), m.GetSlot(), err)
					}
				case c.refused:
					wantRefusal(t, err, true, `"m"`, first, "--id", "alive")
				default:
					wantRefusal(t, err, false, `"m"`, first, "does not answer")
				}
				if !c.admitted {
					// Nothing has changed for the first, also for a control plane that starts anew.
					if err := beatAs(t, plane, "a", ""); err != nil {
						t.Fatal(err)
					}
					stop(t, plane)
					plane = run(t, store, func(_ *Config, d *Deps) { d.Probe = c.around.probe })
					if err := beatAs(t, plane, "a", ""); err != nil {
						t.Fatal(err)
					}
					advance(10 * time.Second) // without heartbeats
					if again, err = joinAs(t, plane, c.at, "b", ""); err != nil || again.GetSlot() != m.GetSlot() {
						t.Fatalf("after the end of the lease: slot %d in place of %d, %v", again.GetSlot(), m.GetSlot(), err)
					}
				}
				// The first one comes back.
				wantRefusal(t, beatAs(t, plane, "a", ""), true, c.at, "has taken this id over")
				if _, err := plane.Leave(t.Context(), &scribev1.LeaveRequest{Id: "m", Incarnation: "a"}); err != nil {
					t.Error(err)
				}
				if err := beatAs(t, plane, "b", ""); err != nil {
					t.Errorf("the successor has lost its lease: %v", err)
				}
				if _, err := joinAs(t, plane, c.at, "b", ""); err != nil {
					t.Errorf("the successor joins again: %v", err)
				}
			})
		})
	}
}

// TestRestoredStore: a control store that was set back names starts of programs that are long gone. Those that run join again, and none is refused.
func TestRestoredStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, around := memkv.New(), neighbourhood{"http://m:1": "b"}
		plane := run(t, store, nil)
		if _, err := joinAs(t, plane, "http://m:1", "a", ""); err != nil {
			t.Fatal(err)
		}
		stop(t, plane)
		// The store is put back as it was before the process was restarted as "b".
		plane = run(t, store, func(_ *Config, d *Deps) { d.Probe = around.probe })
		defer stop(t, plane)
		wantReason(t, beatAs(t, plane, "b", ""), scribev1.Reason_REASON_LEASE_EXPIRED, "join again")
		if _, err := joinAs(t, plane, "http://m:1", "b", ""); err != nil {
			t.Fatal(err)
		}
		if err := beatAs(t, plane, "b", ""); err != nil {
			t.Error(err)
		}
	})
}

// TestOlderProgram: a process that does not say which start it is joins as before.
func TestOlderProgram(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plane := run(t, memkv.New(), func(_ *Config, d *Deps) { d.Probe = neighbourhood{"http://a:1": "a"}.probe })
		defer stop(t, plane)
		for _, incarnation := range []string{"", "", "a", ""} {
			if _, err := joinAs(t, plane, "http://a:1", incarnation, ""); err != nil {
				t.Errorf("as %q: %v", incarnation, err)
			}
		}
	})
}

// TestTwoAtOnce: of two processes that take over an id at the same time, one gets it, and the other one is told.
func TestTwoAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := make(chan struct{})
		plane := run(t, memkv.New(), func(_ *Config, d *Deps) {
			d.Probe = func(context.Context, string) (string, error) {
				<-asked
				return "", syscall.ECONNREFUSED
			}
		})
		defer stop(t, plane)
		if _, err := joinAs(t, plane, "http://a:1", "a", ""); err != nil {
			t.Fatal(err)
		}
		results := make(chan error, 2)
		for _, name := range []string{"b", "c"} {
			go func() {
				_, err := joinAs(t, plane, "http://"+name+":1", name, "")
				results <- err
			}()
		}
		synctest.Wait()
		close(asked)
		one, other := <-results, <-results
		if one == nil {
			one = other
			other = nil
		}
		if other != nil {
			t.Errorf("nobody has joined: %v", other)
		}
		wantRefusal(t, one, false, "has just joined")
	})
}

// TestCellStore: the first member that names its store of payloads decides for the cell. One with another store is refused when it joins, or at the heartbeat that names it.
func TestCellStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memkv.New()
		plane := run(t, store, nil)
		if _, err := joinAs(t, plane, "http://m:1", "a", ""); err != nil {
			t.Fatal(err)
		}
		if err := beatAs(t, plane, "a", "right"); err != nil { // it has learned it since
			t.Fatal(err)
		}
		if e, err := store.Get(t.Context(), cellStoreKey); err != nil || string(e.Value) != "right" {
			t.Errorf("stored is %q, %v", e.Value, err)
		}
		for range 2 { // also by a control plane that starts anew
			_, err := joinAs(t, plane, "http://m:1", "a", "wrong")
			wantRefusal(t, err, true, `"m"`, "right", "wrong", "--blob-path", "store/identity")
			wantRefusal(t, beatAs(t, plane, "a", "wrong"), true, "right", "wrong")
			for _, known := range []string{"right", ""} {
				if _, err := joinAs(t, plane, "http://m:1", "a", known); err != nil {
					t.Errorf("with %q: %v", known, err)
				}
			}
			stop(t, plane)
			plane = run(t, store, nil)
		}
		_, err := joinAs(t, plane, "http://m:1", strings.Repeat("x", 65), strings.Repeat("y", 65))
		wantReason(t, err, scribev1.Reason_REASON_INVALID, "incarnation", "store")
		wantReason(t, beatAs(t, plane, "a", strings.Repeat("y", 65)), scribev1.Reason_REASON_INVALID, "store")
		stop(t, plane)
	})
}

// failingReads is a store whose reads of a key fail.
type failingReads struct {
	kv.Store
	key string
}

var errUnreadable = errors.New("it can't be read")

func (s failingReads) Get(ctx context.Context, key string) (kv.Entry, error) {
	if key == s.key {
		return kv.Entry{}, errUnreadable
	}
	return s.Store.Get(ctx, key)
}

// TestCellStoreUnreadable: a control store that does not answer lets nobody join, and ends no lease.
func TestCellStoreUnreadable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plane := run(t, failingReads{memkv.New(), cellStoreKey}, nil)
		defer stop(t, plane)
		if _, err := joinAs(t, plane, "http://m:1", "a", ""); err != nil {
			t.Fatal(err)
		}
		if _, err := joinAs(t, plane, "http://m:1", "a", "s"); !errors.Is(err, errUnreadable) {
			t.Errorf("a join with a store: %v", err)
		}
		if err := beatAs(t, plane, "a", "s"); err != nil {
			t.Errorf("a heartbeat with a store: %v", err)
		}
	})
}
