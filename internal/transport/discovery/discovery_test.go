package discovery

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"scribe/internal/base/balance"
	"scribe/internal/format/pointer"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

const (
	agent      = scribev1.Role_ROLE_SCRIBED
	writeProxy = scribev1.Role_ROLE_WRITEPROXY
	readProxy  = scribev1.Role_ROLE_READPROXY
	readStream = scribev1.Role_ROLE_READSTREAM
	metalog    = scribev1.Role_ROLE_METALOG
	control    = scribev1.Role_ROLE_CONTROLPLANE
)

// in runs a test with a world, and time that passes when everybody waits.
func in(t *testing.T, test func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(t, newWorld(t)) })
}

func pass(d time.Duration) { <-time.After(d) }

func blob(n byte) []byte {
	p := pointer.Pointer{
		Blob: pointer.MakeBlobID(1e15, [10]byte{9: n}), Class: 72, Codec: pointer.CodecNone,
		BlockLen: 10, BlockRawLen: 10, Length: 10, Frames: 1, Messages: 1,
	}
	return pointer.Append(nil, &p)
}

// `scribe up`: one address that offers everything, and is asked for nothing more.
func TestOneProcess(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		up := w.start("up", agent, writeProxy, readProxy, readStream, metalog, control)
		w.mu.members[0].Url = "http://name-that-only-others-know:1"
		c := w.cell("up")
		if got := up.took("status"); got != 0 {
			t.Errorf("asked %d times before the first call", got)
		}
		for range 10 {
			for name, call := range map[string]func() error{
				"write":   func() error { return write(t.Context(), c) },
				"publish": func() error { _, err := c.Write().Publish(t.Context(), &scribev1.PublishRequest{}); return err },
				"fetch":   func() error { return fetch(t.Context(), c, blob(1)) },
				"stream":  func() error { return stream(t.Context(), c) },
				"metalog": func() error { _, err := c.Metalog(t.Context()); return err },
			} {
				if err := call(); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
		}
		for _, what := range []string{"write", "publish", "fetch", "stream"} {
			if n := up.took(what); n != 10 {
				t.Errorf("%d calls of %s", n, what)
			}
		}
		if n := up.took("status"); n != 1 {
			t.Errorf("asked %d times", n)
		}
		if _, err := c.Control().GetStatus(t.Context(), &scribev1.GetStatusRequest{}); err != nil || up.took("status") != 1 {
			t.Errorf("control: %v", err)
		}
	})
}

// Calls take turns, exactly, and start anywhere.
func TestTurns(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.start("seed", control)
		var proxies []*process
		for i := range 7 {
			proxies = append(proxies, w.start(fmt.Sprint("proxy", i), writeProxy))
		}
		c := w.cell("seed")
		for range 70 {
			if err := write(t.Context(), c); err != nil {
				t.Fatal(err)
			}
		}
		for _, p := range proxies {
			if n := p.took("write"); n != 10 {
				t.Errorf("%s took %d of 70", p.host, n)
			}
		}
		// One that is down does not make its neighbour take its share.
		proxies[3].stop()
		for range 60 {
			if err := write(t.Context(), c); err != nil {
				t.Fatal(err)
			}
		}
		for i, p := range proxies {
			if n := p.took("write"); i != 3 && (n < 9 || n > 12) {
				t.Errorf("%s took %d of 60", p.host, n)
			}
		}
	})
}

// Clients that begin together do not begin with the same instance.
func TestFirstTurn(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.start("seed", control)
		a, b := w.start("a", writeProxy), w.start("b", writeProxy)
		for range 40 {
			if err := write(t.Context(), w.cell("seed")); err != nil {
				t.Fatal(err)
			}
		}
		if n, m := a.took("write"), b.took("write"); n == 0 || m == 0 {
			t.Errorf("the first call went to a %d times, to b %d times", n, m)
		}
	})
}

// A blob's calls go to one instance; one that leaves or is down moves only its own blobs, and gets them back.
func TestPayloadsStay(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.start("seed", control)
		var proxies []*process
		for i := range 5 {
			proxies = append(proxies, w.start(fmt.Sprint("proxy", i), readProxy))
		}
		c := w.cell("seed")
		where := func() map[byte]string {
			at := make(map[byte]string)
			for n := range byte(200) {
				if err := fetch(t.Context(), c, blob(n)); err != nil {
					t.Fatal(err)
				}
				for _, p := range proxies {
					if p.took("fetch") > 0 {
						at[n] = p.host
					}
				}
			}
			return at
		}
		before := where()
		share := make(map[string]int)
		for _, host := range before {
			share[host]++
		}
		for _, p := range proxies {
			if n := share[p.host]; n < 15 || n > 75 {
				t.Errorf("%s has %d of 200 blobs", p.host, n)
			}
		}
		if again := where(); !sameMap(again, before) {
			t.Error("blobs moved without a cause")
		}
		host := proxies[2].host
		proxies[2].stop() // still a member
		for n, at := range where() {
			if at == host || before[n] != host && at != before[n] {
				t.Errorf("blob %d moved from %s to %s when %s went down", n, before[n], at, host)
			}
		}
		w.leave(host)
		pass(2 * refreshEvery)
		for n, at := range where() {
			if before[n] != host && at != before[n] {
				t.Errorf("blob %d moved from %s to %s when %s left", n, before[n], at, host)
			}
		}
		w.leave(host)
		proxies[2] = w.start(host, readProxy)
		pass(2 * refreshEvery)
		if again := where(); !sameMap(again, before) {
			t.Error("blobs did not move back")
		}
	})
}

func sameMap(a, b map[byte]string) bool {
	for k, v := range a {
		if b[k] != v {
			return false
		}
	}
	return len(a) == len(b)
}

// Two pointers of a blob have one key, whatever else is in them.
func TestBlobKey(t *testing.T) {
	p, err := pointer.Decode(blob(7))
	if err != nil {
		t.Fatal(err)
	}
	key := func(b ...[]byte) *uint64 { return blobKey(b) }
	want := *key(pointer.Append(nil, &p))
	p.Codec, p.BlockOffset, p.MinTime, p.MaxTime = pointer.CodecZstd, 12345, 99, 100
	if got := *key(pointer.Append(nil, &p), blob(9)); got != want {
		t.Errorf("keys are %x and %x", got, want)
	}
	if got := *key(blob(8)); got == want {
		t.Error("two blobs have one key")
	}
	if key() != nil || key([]byte("damage")) != nil {
		t.Error("a key without a pointer")
	}
}

// A request that an instance refused, or never got, goes to the next one; the caller sees nothing.
func TestFailover(t *testing.T) {
	for name, fail := range map[string]func(*process){
		"down":          (*process).stop,
		"overloaded":    answers(rpc.RetryErrorf(scribev1.Reason_REASON_OVERLOADED, 10*time.Second, "full")),
		"shutting down": answers(rpc.Errorf(scribev1.Reason_REASON_SHUTTING_DOWN, "bye")),
		"no backend":    answers(rpc.Errorf(scribev1.Reason_REASON_NO_BACKEND, "no batcher")),
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				w.start("seed", control)
				bad, good := w.start("bad", writeProxy, readProxy, readStream), w.start("good", writeProxy, readProxy, readStream)
				fail(bad)
				c := w.cell("seed")
				streams := 0
				for n := range byte(20) {
					if err := errors.Join(write(t.Context(), c), fetch(t.Context(), c, blob(n))); err != nil {
						t.Errorf("call %d: %v", n, err)
					}
					if stream(t.Context(), c) == nil { // its own try is the only one
						streams++
					}
				}
				if n, m := good.took("write"), good.took("fetch"); n != 20 || m != 20 || streams < 19 {
					t.Errorf("%d writes, %d fetches, %d streams", n, m, streams)
				}
				// It was passed over after its first failure.
				if n := bad.took("write") + bad.took("fetch") + bad.took("stream"); n > 3 {
					t.Errorf("the bad one was called %d times", n)
				}
				pass(passOver)
				for n := range byte(20) {
					if err := errors.Join(write(t.Context(), c), fetch(t.Context(), c, blob(n))); err != nil {
						t.Errorf("call %d: %v", n, err)
					}
				}
				if name != "down" && bad.took("write") != 1 {
					t.Error("it was not tried again after a while")
				}
			})
		})
	}
}

func answers(err error) func(*process) {
	return func(p *process) {
		fail := func(context.Context) error { return err }
		p.write, p.fetch, p.stream = fail, fail, fail
	}
}

// An instance that works again is used again at once.
func TestRecovery(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.start("seed", control)
		a, b := w.start("a", writeProxy), w.start("b", writeProxy)
		overloaded := func(context.Context) error {
			return rpc.RetryErrorf(scribev1.Reason_REASON_OVERLOADED, 200*time.Millisecond, "full")
		}
		a.write, b.write = overloaded, overloaded
		c := w.cell("seed")
		err := write(t.Context(), c)
		if info := rpc.Info(err); info.GetReason() != scribev1.Reason_REASON_OVERLOADED || info.GetRetryAfter().AsDuration() != 200*time.Millisecond {
			t.Errorf("error is %v", err)
		}
		if n := a.took("write") + b.took("write"); n != 2 {
			t.Errorf("%d tries", n)
		}
		a.write, b.write = nil, nil
		pass(200 * time.Millisecond) // as they asked, not longer
		for range 10 {
			if err := write(t.Context(), c); err != nil {
				t.Error(err)
			}
		}
		if n, m := a.took("write"), b.took("write"); n != 5 || m != 5 {
			t.Errorf("a took %d, b %d", n, m)
		}
	})
}

// What may have been carried out is not repeated, unless it changes nothing.
func TestUnknownOutcome(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.start("seed", control)
		a, b := w.start("a", writeProxy, readProxy), w.start("b", writeProxy, readProxy)
		abort := func(context.Context) error { panic(http.ErrAbortHandler) }
		a.write, b.write = abort, abort
		c := w.cell("seed")
		for range 4 {
			if err := write(t.Context(), c); rpc.ReasonOf(err) != scribev1.Reason_REASON_UNKNOWN_OUTCOME {
				t.Errorf("error is %v", err)
			}
		}
		if n := a.took("write") + b.took("write"); n != 4 {
			t.Errorf("4 writes were tried %d times", n)
		}
		a.fetch = abort
		for n := range byte(10) {
			if err := fetch(t.Context(), c, blob(n)); err != nil {
				t.Errorf("fetch: %v", err)
			}
		}
		if n := a.took("fetch"); n != 1 {
			t.Errorf("the bad one was asked %d times", n)
		}
	})
}

// Errors that any instance would give are not tried elsewhere, and each call has few tries.
func TestNoFailover(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.start("seed", control)
		var all []*process
		tries := func() (n int) {
			for _, p := range all {
				n += p.took("write")
			}
			return n
		}
		for i := range 5 {
			all = append(all, w.start(fmt.Sprint("proxy", i), writeProxy))
		}
		c := w.cell("seed")
		for err, want := range map[error]int{
			rpc.Errorf(scribev1.Reason_REASON_INVALID, "no frames"):        1,
			rpc.Errorf(scribev1.Reason_REASON_UNKNOWN_CATEGORY, "no such"): 1,
			errors.New("plain"): 1,
			rpc.Errorf(scribev1.Reason_REASON_OVERLOADED, "all of us are full"): maxTries,
		} {
			for _, p := range all {
				answers(err)(p)
			}
			got := write(t.Context(), c)
			if n := tries(); n != want || rpc.ReasonOf(got) != rpc.ReasonOf(err) {
				t.Errorf("%v: %d tries, %v", err, n, got)
			}
		}
		// The caller's time is the caller's.
		for _, p := range all {
			p.write = func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := write(ctx, c); !errors.Is(err, context.DeadlineExceeded) || tries() != 1 {
			t.Errorf("error is %v", err)
		}
	})
}

// The error of a call says what the most telling instance said.
func TestOutcome(t *testing.T) {
	down := rpc.Errorf(scribev1.Reason_REASON_NO_BACKEND, "refused")
	full := rpc.Errorf(scribev1.Reason_REASON_OVERLOADED, "full")
	lost := rpc.Errorf(scribev1.Reason_REASON_UNKNOWN_OUTCOME, "lost")
	for _, c := range []struct {
		failed []error
		want   scribev1.Reason
	}{
		{[]error{down}, scribev1.Reason_REASON_NO_BACKEND},
		{[]error{down, down}, scribev1.Reason_REASON_NO_BACKEND},
		{[]error{full, down}, scribev1.Reason_REASON_OVERLOADED},
		{[]error{down, full}, scribev1.Reason_REASON_OVERLOADED},
		{[]error{full, lost}, scribev1.Reason_REASON_UNKNOWN_OUTCOME},
		{[]error{lost, down, down}, scribev1.Reason_REASON_UNKNOWN_OUTCOME},
	} {
		err := joinErrors(c.failed)
		if rpc.ReasonOf(err) != c.want {
			t.Errorf("%v is %v", c.failed, err)
		}
		for _, f := range c.failed {
			if !strings.Contains(err.Error(), f.Error()) {
				t.Errorf("%q does not say %q", err, f)
			}
		}
	}
}

// An agent is used where the client was pointed at it, and nowhere else.
func TestAgents(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.start("seed", control)
		mine, theirs, proxy := w.start("mine", agent), w.start("theirs", agent), w.start("proxy", writeProxy)
		if err := write(t.Context(), w.cell("seed")); err != nil || proxy.took("write") != 1 {
			t.Errorf("through the seed: %v", err)
		}
		c := w.cell("mine")
		for range 5 {
			if err := write(t.Context(), c); err != nil {
				t.Error(err)
			}
		}
		if n := mine.took("write"); n != 5 {
			t.Errorf("the host's agent took %d of 5", n)
		}
		// A host's agent that is down is an error: its buffer is what was asked for.
		mine.stop()
		for range 3 {
			if err := write(t.Context(), c); rpc.ReasonOf(err) != scribev1.Reason_REASON_NO_BACKEND {
				t.Errorf("error is %v", err)
			}
			pass(2 * refreshEvery)
		}
		w.leave("proxy")
		proxy.took("write")
		lonely := w.cell("seed")
		if err := write(t.Context(), lonely); rpc.ReasonOf(err) != scribev1.Reason_REASON_NO_BACKEND || !strings.Contains(err.Error(), "no write proxy is known to http://seed:7420") {
			t.Errorf("error is %v", err)
		}
		if theirs.took("write")+proxy.took("write") > 0 {
			t.Error("another one was used")
		}
	})
}

// Calls from many goroutines while members come, go and fail; the race detector watches.
func TestTogether(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.start("seed", control)
		for i := range 4 {
			w.start(fmt.Sprint("proxy", i), writeProxy, readProxy, readStream)
		}
		c := w.cell("seed")
		var group sync.WaitGroup
		for i := range 16 {
			group.Go(func() {
				for n := range byte(40) {
					err := errors.Join(write(t.Context(), c), fetch(t.Context(), c, blob(n)))
					if i%4 == 0 {
						_ = stream(t.Context(), c)
					}
					// A process that stops may break a call; it may not make one hang, or be refused by all.
					if r := rpc.ReasonOf(err); err != nil && r != scribev1.Reason_REASON_UNKNOWN_OUTCOME {
						t.Errorf("%v (%s)", err, r)
					}
					pass(time.Second)
				}
			})
		}
		for round := range 6 {
			pass(5 * time.Second)
			host := fmt.Sprint("proxy", round%4)
			w.mu.Lock()
			p := w.mu.processes[host]
			w.mu.Unlock()
			p.stop()
			w.leave(host)
			pass(2 * time.Second)
			w.start(host, writeProxy, readProxy, readStream)
		}
		group.Wait()
	})
}

func TestRoleNames(t *testing.T) {
	for number := range scribev1.Role_name {
		if role := scribev1.Role(number); role != 0 && roleNames[role] == "" {
			t.Errorf("%s has no name", role)
		}
	}
}

// Streams are long: they go where there is less to do.
func TestStreamsGoToTheLessLoaded(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.start("cp", control)
		busy, a, b := w.start("busy", readStream), w.start("a", readStream), w.start("b", readStream)
		w.mu.members[1].Load, w.mu.members[2].Load, w.mu.members[3].Load = 900, 20, 20
		c := w.cell("cp")
		for range 30 {
			if err := stream(t.Context(), c); err != nil {
				t.Fatal(err)
			}
		}
		if n, na, nb := busy.took("stream"), a.took("stream"), b.took("stream"); n > 2 || na < 5 || nb < 5 {
			t.Errorf("the busy one took %d of 30 streams, the others %d and %d", n, na, nb)
		}
	})
}

// A stream that the given address sends away goes to a member, and comes back some time later.
func TestStreamsSentAway(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		up, other := w.start("up", control, readStream), w.start("other", readStream)
		up.evicts, up.reason = true, scribev1.Reason_REASON_OVERLOADED
		c := w.cell("up")
		for i, want := range []struct{ up, other int }{{1, 0}, {0, 1}, {0, 1}} {
			if err := stream(t.Context(), c); err != nil {
				t.Fatal(err)
			}
			if atUp, atOther := up.took("stream"), other.took("stream"); atUp != want.up || atOther != want.other {
				t.Fatalf("stream %d: %d at the given address, %d at the other", i, atUp, atOther)
			}
		}
		pass(passOver + time.Second)
		if err := stream(t.Context(), c); err != nil || up.took("stream") != 1 {
			t.Errorf("%v, it did not go back to the given address", err)
		}
	})
}

// A process that says that it stops is left by the very call that it refuses, however young the list of instances is; the one that goes on
// offering its roles is not asked again and again what it offers.
func TestInstanceStops(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		up, other := w.start("up", control, writeProxy, readStream), w.start("other", writeProxy, readStream)
		c := w.cell("up")
		if err := write(t.Context(), c); err != nil || up.took("write") != 1 {
			t.Fatal(err)
		}
		refuse := func(context.Context) error {
			return rpc.Errorf(scribev1.Reason_REASON_SHUTTING_DOWN, "it is shutting down")
		}
		up.write = refuse
		up.took("status")
		for range 10 {
			if err := write(t.Context(), c); rpc.ReasonOf(err) != scribev1.Reason_REASON_SHUTTING_DOWN {
				t.Fatal(err)
			}
		}
		if n := up.took("status"); n > 1 {
			t.Errorf("it was asked %d times", n)
		}
		pass(passOver + time.Second)
		up.write = nil
		if err := write(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		up.took("write")
		up.write, up.roles = refuse, nil
		w.leave("up")
		for range 3 {
			if err := write(t.Context(), c); err != nil || other.took("write") != 1 {
				t.Errorf("another instance serves it: %v", err)
			}
		}
		if n := up.took("write"); n != 1 {
			t.Errorf("it was called %d times", n)
		}
	})
}

// The streams of an instance that stops go to another one.
func TestStreamsOfAnInstanceThatStops(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		up, other := w.start("up", control, readStream), w.start("other", readStream)
		up.evicts, up.reason = true, scribev1.Reason_REASON_SHUTTING_DOWN
		c := w.cell("up")
		for range 2 {
			if err := stream(t.Context(), c); err != nil {
				t.Fatal(err)
			}
		}
		if up.took("stream") != 1 || other.took("stream") != 1 {
			t.Error("the stream went back to the instance that stops")
		}
	})
}

// A caller that found an instance broken is sent to another one; one that only gave up is not.
func TestBrokenInstances(t *testing.T) {
	for _, c := range []struct {
		what, server string
		call         func(context.Context, *Cell) error
	}{
		{"stream", "a", stream}, // the given address, as long as it is well
		{"fetch", "seed", func(ctx context.Context, c *Cell) error { return fetch(ctx, c, blob(1)) }},
	} {
		for cause, elsewhere := range map[error]bool{ErrBroken: true, context.Canceled: false} {
			t.Run(fmt.Sprint(c.what, " ", cause), func(t *testing.T) {
				in(t, func(t *testing.T, w *world) {
					w.start("seed", control)
					var well atomic.Bool
					hangs := func(ctx context.Context) error {
						if !well.Load() {
							<-ctx.Done()
						}
						return context.Cause(ctx)
					}
					both := []*process{w.start("a", control, readStream, readProxy), w.start("b", readStream, readProxy)}
					for _, p := range both {
						p.stream, p.fetch = hangs, hangs
					}
					cell := w.cell(c.server)
					ctx, cancel := context.WithCancelCause(t.Context())
					time.AfterFunc(time.Second, func() { cancel(cause) })
					if err := c.call(ctx, cell); err == nil {
						t.Fatal("an instance that hangs answered")
					}
					first := both[0].took(c.what) == 1
					both[1].took(c.what)
					pass(time.Second) // the servers have noticed
					well.Store(true)
					if err := c.call(t.Context(), cell); err != nil || (both[0].took(c.what) == 1) != (first != elsewhere) {
						t.Errorf("the next call went to the wrong one: %v", err)
					}
				})
			})
		}
	}
}

// Writes go where there is room: fewer to a write proxy that is clearly busier than the others, none that has to be noticed to one of an
// older program, which does not tell its load.
func TestWritesGoWhereThereIsRoom(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.start("cp", control)
		busy, calm, older := w.start("busy", writeProxy), w.start("calm", writeProxy), w.start("older", writeProxy)
		told := func(load uint32) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.mu.members[1].Loads = []*scribev1.RoleLoad{{Role: readStream, Load: 5}, {Role: writeProxy, Load: load}}
			w.mu.members[2].Loads = []*scribev1.RoleLoad{{Role: readStream, Load: 999}, {Role: writeProxy, Load: 30}}
			w.mu.members[3].Load = 700 // of a batcher in the same process
		}
		told(800)
		c := w.cell("cp")
		if _, err := c.Metalog(t.Context()); err == nil {
			t.Fatal("there is no metalog")
		}
		calls := func(n int) (atBusy, atCalm, atOlder int) {
			for range n {
				if err := write(t.Context(), c); err != nil {
					t.Fatal(err)
				}
			}
			return busy.took("write"), calm.took("write"), older.took("write")
		}
		if b, ca, o := calls(60); b > 6 || ca < 26 || o < 26 {
			t.Errorf("with one busy: %d, %d and %d calls of 60", b, ca, o)
		}
		told(30)
		for range 60 {
			pass(time.Second)
			calls(3)
		}
		if b, ca, o := calls(60); b < 18 || ca < 18 || o < 18 {
			t.Errorf("afterwards: %d, %d and %d calls of 60", b, ca, o)
		}
	})
}

// A write proxy that has just started gets few calls at first, by the time of the cell; one that started long ago is not taken for new.
func TestNewInstancesWarmUp(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.start("cp", control)
		fresh, old := w.start("fresh", writeProxy), w.start("old", writeProxy)
		w.mu.listedAt = 1e15 // the cell's clock is far from that of the client
		w.mu.members[1].JoinedAt, w.mu.members[2].JoinedAt = w.mu.listedAt-1e6, w.mu.listedAt-3600e6
		c := w.cell("cp")
		calls := func(n int) (atFresh, atOld int) {
			for range n {
				if err := write(t.Context(), c); err != nil {
					t.Fatal(err)
				}
			}
			return fresh.took("write"), old.took("write")
		}
		if f, o := calls(90); f < 5 || f > 15 {
			t.Errorf("%d calls to the new one, %d to the other", f, o)
		}
		pass(45 * time.Second)
		if f, o := calls(90); f < 35 {
			t.Errorf("%d calls to the new one, %d to the other after 45 s", f, o)
		}
	})
}

// Fallbacks of a blob's home that are clearly busier than others come last; the home stays.
func TestBusyFallbacksComeLast(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.start("cp", control)
		for i := range 4 {
			w.start(fmt.Sprint("proxy", i), readProxy)
		}
		order := func(loads ...uint32) []string {
			for i, load := range loads {
				w.mu.members[1+i].Loads = []*scribev1.RoleLoad{{Role: readProxy, Load: load}}
			}
			key := uint64(77)
			ch, err := w.cell("cp").chooseInstances(t.Context(), &key, readProxy)
			if err != nil {
				t.Fatal(err)
			}
			return ch.urls
		}
		calm := order(0, 0, 0, 0)
		for at := range calm {
			loads := make([]uint32, 4)
			for i := range loads {
				if url(fmt.Sprint("proxy", i)) == calm[at] {
					loads[i] = 900
				}
			}
			want := slices.Clone(calm)
			if at > 0 {
				want = append(slices.Delete(want, at, at+1), calm[at])
			}
			if got := order(loads...); !slices.Equal(got, want) {
				t.Errorf("number %d is busy: %v, want %v", at, got, want)
			}
		}
	})
}

// A write proxy that fails at once, and so is idle, does not make the one that works look busy.
func TestFastFailureIsNotTheNorm(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.start("cp", control)
		w.start("broken", writeProxy).write = func(context.Context) error { return rpc.Errorf(scribev1.Reason_REASON_NO_BACKEND, "no disk") }
		w.start("well", writeProxy)
		w.mu.members[1].Loads = []*scribev1.RoleLoad{{Role: writeProxy, Load: 1}}
		w.mu.members[2].Loads = []*scribev1.RoleLoad{{Role: writeProxy, Load: 600}}
		c := w.cell("cp")
		for range 240 { // the first decision could not know that it fails
			pass(250 * time.Millisecond)
			_ = write(t.Context(), c)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		if got := c.mu.choosers[writeProxy].Weight(url("well")); got != 1 {
			t.Errorf("the weight of the one that works is %v", got)
		}
		if got := c.mu.choosers[writeProxy].Weight(url("broken")); got > 0.3 {
			t.Errorf("the weight of the one that fails is %v", got)
		}
	})
}

// An instance that joins again, since its lease had expired, is not one that has just started.
func TestJoinedAgain(t *testing.T) {
	report := func(incarnation string, joinedAt int64) balance.Report {
		st := &scribev1.GetStatusResponse{MembersAt: 9e15, Members: []*scribev1.Member{{
			Id: "w", Url: "http://w", Roles: []scribev1.Role{writeProxy}, Incarnation: incarnation, JoinedAt: joinedAt,
		}}}
		return membersOf(st).reportsOf(writeProxy)[0]
	}
	if a, b, other := report("x", 5e15), report("x", 8e15), report("y", 8e15); a.Start != b.Start || a.Start == other.Start || a.Start == 0 {
		t.Errorf("starts %d, %d and %d", a.Start, b.Start, other.Start)
	}
	if a, b := report("", 5e15), report("", 8e15); a.Start == b.Start {
		t.Error("two starts of an older program are one")
	}
}
