package discovery

import (
	"context"
	"strings"
	"testing"
	"time"

	"scribe/internal/transport/retry"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// cellOf is a client's view through several hosts.
func (w *world) cellOf(hosts ...string) *Cell {
	for i, host := range hosts {
		hosts[i] = url(host)
	}
	return New(w.transport, strings.Join(hosts, ","), nil)
}

// A client finds its cell as long as one of its addresses answers, also at its first call, and uses the roles of the one that does.
func TestSeveralAddresses(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		b := w.start("b", control, writeProxy)
		c := w.cellOf("gone", "b", "c")
		for range 3 {
			if err := write(t.Context(), c); err != nil || b.took("write") != 1 {
				t.Fatalf("with the first address gone: %v", err)
			}
		}
		next := w.start("c", control, writeProxy)
		w.leave("b")
		b.stop()
		err := write(t.Context(), c)
		if d := retry.Classify(err); d.Class != retry.Unavailable || d.Unknown {
			t.Errorf("the address goes: %v", err)
		}
		pass(refreshSoon)
		if err := write(t.Context(), c); err != nil || next.took("write") != 1 {
			t.Errorf("with another address: %v", err)
		}
		if _, err := c.Control().GetStatus(t.Context(), &scribev1.GetStatusRequest{}); err != nil {
			t.Errorf("the control plane: %v", err)
		}
	})
}

// An agent comes first; without it messages go through the cell.
func TestAgentThenCell(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		local, front := w.start("agent", agent), w.start("front", control, writeProxy)
		w.leave("agent") // agents are no members
		c := w.cellOf("agent", "front")
		if err := write(t.Context(), c); err != nil || local.took("write") != 1 {
			t.Errorf("through the agent: %v", err)
		}
		local.stop()
		_ = write(t.Context(), c) // notices
		pass(refreshSoon)
		if err := write(t.Context(), c); err != nil || front.took("write") != 1 {
			t.Errorf("without the agent: %v", err)
		}
	})
}

// A silent address costs its patience, not the caller's whole time.
func TestSilentFirstAddress(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.silence("a", true)
		b := w.start("b", control, writeProxy)
		ctx, cancel := context.WithTimeout(t.Context(), 2*lookupPatience)
		defer cancel()
		began := time.Now()
		if err := write(ctx, w.cellOf("a", "b")); err != nil || b.took("write") != 1 {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
	})
}

// With no address left, members that were known help, as with one address. An invalid list is told at every call.
func TestNoAddressLeft(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		a, b := w.start("a", control), w.start("b", control)
		w.start("proxy", writeProxy)
		c := w.cellOf("a", "b")
		if err := write(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		a.stop()
		b.stop()
		w.leave("a")
		later := w.start("later", writeProxy)
		pass(2 * refreshEvery)
		for range 4 {
			if err := write(t.Context(), c); err != nil {
				t.Fatal(err)
			}
		}
		if later.took("write") == 0 {
			t.Error("the members did not name a new one")
		}
		err := write(t.Context(), New(w.transport, "a,,b", nil))
		if rpc.ReasonOf(err) != scribev1.Reason_REASON_INVALID || !strings.Contains(err.Error(), "is empty") {
			t.Errorf("an invalid list: %v", err)
		}
	})
}
