package discovery

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"

	"scribe/internal/transport/retry"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// Members come and go, and a role that nobody offers is looked for again soon.
func TestMembership(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		seed := w.start("seed", control)
		c := w.cell("seed")
		for range 10 {
			if err := errors.Join(write(t.Context(), c)); rpc.ReasonOf(err) != scribev1.Reason_REASON_NO_BACKEND || rpc.Info(err).GetRetryAfter().AsDuration() != refreshSoon {
				t.Fatalf("error is %v", err)
			}
			if err := fetch(t.Context(), c, blob(1)); rpc.ReasonOf(err) != scribev1.Reason_REASON_NO_BACKEND {
				t.Fatalf("error is %v", err)
			}
		}
		if n := seed.took("status"); n != 1 {
			t.Errorf("asked %d times", n)
		}
		a := w.start("a", writeProxy)
		pass(refreshSoon)
		if err := write(t.Context(), c); err != nil || a.took("write") != 1 {
			t.Errorf("a new member: %v", err)
		}
		b := w.start("b", writeProxy)
		w.leave("a")
		pass(2 * refreshEvery)
		if err := write(t.Context(), c); err != nil || b.took("write") != 1 || a.took("write") != 0 {
			t.Errorf("a member that left: %v", err)
		}
		if n := len(c.mu.clients); n != 1 {
			t.Errorf("%d clients are kept", n)
		}
		// Failures of who left are forgotten.
		b.stop()
		if err := write(t.Context(), c); err == nil || len(c.mu.failed) != 1 {
			t.Errorf("%v, %d failures", err, len(c.mu.failed))
		}
		w.leave("b")
		w.start("d", writeProxy)
		pass(2 * refreshEvery)
		if err := write(t.Context(), c); err != nil || len(c.mu.failed) != 0 {
			t.Errorf("%v, %d failures", err, len(c.mu.failed))
		}
	})
}

// A process whose roles changed is not used for what it does not offer any more.
func TestRoleMoved(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.start("seed", control)
		old := w.start("a", writeProxy)
		c := w.cell("seed")
		if err := write(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		old.stop()
		w.leave("a")
		w.start("a", readProxy)
		b := w.start("b", writeProxy)
		if err := write(t.Context(), c); err == nil { // it can't know better
			t.Error("written to a read proxy")
		}
		pass(refreshSoon)
		if err := write(t.Context(), c); err != nil || b.took("write") != 1 {
			t.Errorf("error is %v", err)
		}
	})
}

// However many call, one asks.
func TestOneRefresh(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		seed, proxy := w.start("seed", control), w.start("proxy", writeProxy)
		seed.status = func(context.Context) error { pass(time.Second); return nil }
		c := w.cell("seed")
		var group sync.WaitGroup
		for range 100 {
			group.Go(func() {
				if err := write(t.Context(), c); err != nil {
					t.Error(err)
				}
			})
		}
		group.Wait()
		if n, m := seed.took("status"), proxy.took("write"); n != 1 || m != 100 {
			t.Errorf("asked %d times for %d writes", n, m)
		}
		// Later one asks while the others go on.
		// A moment more than the 10 s that a server gives a connection to bring its first request: some of the hundred are yet to bring one.
		pass(2*refreshEvery + time.Millisecond)
		seed.status = func(context.Context) error { pass(900 * time.Millisecond); return nil }
		began := time.Now()
		var slow int
		var mu sync.Mutex
		for range 100 {
			group.Go(func() {
				if err := write(t.Context(), c); err != nil {
					t.Error(err)
				}
				if time.Since(began) > 0 {
					mu.Lock()
					slow++
					mu.Unlock()
				}
			})
		}
		group.Wait()
		if n := seed.took("status"); n != 1 || slow != 1 {
			t.Errorf("asked %d times, %d calls waited", n, slow)
		}
	})
}

// A caller that gives up does not spoil the question for those who wait with it.
func TestAskerGivesUp(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		seed := w.start("seed", control)
		w.start("proxy", writeProxy)
		seed.status = func(ctx context.Context) error {
			select {
			case <-time.After(2 * time.Second):
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		c := w.cell("seed")
		hasty, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		first, second, third := make(chan error, 1), make(chan error, 1), make(chan error, 1)
		go func() { first <- write(hasty, c) }()
		synctest.Wait()
		go func() { second <- write(t.Context(), c) }()
		impatient, cancel2 := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel2()
		go func() { third <- write(impatient, c) }()
		if err := <-third; !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("one that waited: %v", err)
		}
		if err := <-first; !errors.Is(err, context.DeadlineExceeded) || rpc.ReasonOf(err) != scribev1.Reason_REASON_NO_BACKEND {
			t.Errorf("the one that asked: %v", err)
		}
		if err := <-second; err != nil {
			t.Errorf("one that went on: %v", err)
		}
	})
}

// A cell that can't be reached is a clear error, in time, for all who ask.
func TestUnreachable(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		c := w.cell("nobody")
		err := write(t.Context(), c)
		if rpc.ReasonOf(err) != scribev1.Reason_REASON_NO_BACKEND || !strings.Contains(err.Error(), "ask http://nobody:7420 what it serves") ||
			!strings.Contains(err.Error(), "connection refused") {
			t.Errorf("error is %v", err)
		}
		w.silence("nobody", true)
		began := time.Now()
		var group sync.WaitGroup
		for range 10 {
			group.Go(func() {
				err := stream(t.Context(), c)
				if rpc.ReasonOf(err) != scribev1.Reason_REASON_NO_BACKEND || !retry.Retryable(err) || errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("error is %v", err)
				}
			})
		}
		group.Wait()
		if took := time.Since(began); took != lookupTimeout {
			t.Errorf("it took %s", took)
		}
		// It is found as soon as it is there.
		w.silence("nobody", false)
		up := w.start("nobody", writeProxy)
		if err := write(t.Context(), c); err != nil || up.took("write") != 1 {
			t.Errorf("error is %v", err)
		}
	})
}

// An address that knows nothing of membership is asked for the service itself.
func TestNoControlService(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		p := w.start("gateway", writeProxy)
		p.status = func(context.Context) error {
			return connect.NewError(connect.CodeUnimplemented, errors.New("no such path"))
		}
		c := w.cell("gateway")
		for range 3 {
			if err := write(t.Context(), c); err != nil {
				t.Error(err)
			}
			if err := fetch(t.Context(), c, blob(1)); connect.CodeOf(err) != connect.CodeUnimplemented {
				t.Errorf("error is %v", err)
			}
		}
		if n, m := p.took("write"), p.took("status"); n != 3 || m > 2 {
			t.Errorf("%d writes, asked %d times", n, m)
		}
	})
}

// A question that was answered with no is not one to repeat.
func TestLookupDenied(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		seed := w.start("seed", control)
		seed.status = func(context.Context) error { return rpc.Errorf(scribev1.Reason_REASON_INVALID, "who are you?") }
		if err := write(t.Context(), w.cell("seed")); rpc.ReasonOf(err) != scribev1.Reason_REASON_INVALID || retry.Retryable(err) {
			t.Errorf("error is %v", err)
		}
	})
}

// A list that can't be refreshed is still used, and asking costs less and less.
func TestStaleList(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		seed := w.start("seed", control)
		a, b := w.start("a", writeProxy), w.start("b", writeProxy)
		a.status = func(context.Context) error { return errors.New("no control plane") }
		b.status = a.status
		c := w.cell("seed")
		if err := write(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		seed.stop()
		w.silence("seed", true)
		slow := 0
		for range 600 {
			began := time.Now()
			if err := write(t.Context(), c); err != nil {
				t.Fatal(err)
			}
			switch took := time.Since(began); {
			case took > recheckTimeout:
				t.Fatalf("a write took %s", took)
			case took > 0:
				slow++
			}
			pass(time.Second)
		}
		if slow < 8 || slow > 15 { // 5, 10, 20, 40, 60, 60, ... seconds apart
			t.Errorf("%d of 600 writes waited for the control plane", slow)
		}
		if n, m := a.took("write"), b.took("write"); n < 299 || m < 299 {
			t.Errorf("a took %d, b %d", n, m)
		}
	})
}

// Members stand in for the given address; they too tell of changes, until it is back.
func TestSubstitutes(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		seed := w.start("seed", control, writeProxy)
		a := w.start("a", writeProxy)
		c := w.cell("seed")
		if err := write(t.Context(), c); err != nil || seed.took("write") != 1 || a.took("write") != 0 {
			t.Fatalf("error is %v", err)
		}
		seed.stop()
		w.leave("seed")
		if err := write(t.Context(), c); rpc.ReasonOf(err) != scribev1.Reason_REASON_NO_BACKEND {
			t.Errorf("error is %v", err)
		}
		pass(refreshSoon)
		if err := write(t.Context(), c); err != nil || a.took("write") != 1 {
			t.Errorf("without the given address: %v", err)
		}
		b := w.start("b", writeProxy)
		a.stop()
		w.leave("a")
		pass(2 * refreshEvery)
		if err := write(t.Context(), c); err == nil { // b came after the last question, a was the only one to ask
			t.Errorf("written to %d", b.took("write"))
		}
		seed = w.start("seed", control, writeProxy)
		pass(refreshSoon)
		if err := write(t.Context(), c); err != nil || seed.took("write") != 1 {
			t.Errorf("with the given address again: %v", err)
		}
	})
}

// A member's address that passed to another cell is not taken for a member.
func TestSubstituteOfAnotherCell(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		seed := w.start("seed", control)
		a := w.start("a", writeProxy)
		b := w.start("b", readProxy)
		c := w.cell("seed")
		if err := write(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		seed.stop()
		a.mu.others, b.mu.others = true, true
		pass(2 * refreshEvery)
		if err := write(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		if n := a.took("status") + b.took("status"); n != 2 || !slices.Equal(c.mu.view.roles[readProxy], []string{url("b")}) {
			t.Errorf("asked %d, roles are %v", n, c.mu.view.roles)
		}
	})
}
