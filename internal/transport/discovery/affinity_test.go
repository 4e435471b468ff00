package discovery

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"scribe/internal/format/pointer"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// readers starts a cell of n read proxies, and returns them by their host.
func readers(w *world, n int) map[string]*process {
	w.start("seed", control)
	all := map[string]*process{}
	for i := range n {
		p := w.start(fmt.Sprint("proxy", i), readProxy)
		all[p.host] = p
	}
	return all
}

// busy refuses every fetch with a hint.
func busy(after time.Duration) func(context.Context) error {
	return func(context.Context) error {
		return rpc.RetryErrorf(scribev1.Reason_REASON_OVERLOADED, after, "busy")
	}
}

// homeOf is the host of a pointer's home.
func homeOf(t *testing.T, encoded []byte, all map[string]*process) string {
	t.Helper()
	urls := make([]string, 0, len(all))
	hosts := map[string]string{}
	for host := range all {
		urls = append(urls, url(host))
		hosts[url(host)] = host
	}
	return hosts[homeURL(*blobKey([][]byte{encoded}), urls)]
}

// taken are the hosts that were asked since it was called last, with how often.
func taken(all map[string]*process) map[string]int {
	out := map[string]int{}
	for host, p := range all {
		if n := p.took("fetch"); n > 0 {
			out[host] = n
		}
	}
	return out
}

// Whatever ask, of however many clients: all ask for a blob at one place, so that a herd is one fetch there.
func TestHerdHasOneHome(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		all := readers(w, 8)
		var askers sync.WaitGroup
		for range 1000 {
			askers.Go(func() {
				if err := fetch(t.Context(), w.cell("seed"), blob(1)); err != nil {
					t.Error(err)
				}
			})
		}
		askers.Wait()
		if got := taken(all); len(got) != 1 || got[homeOf(t, blob(1), all)] != 1000 {
			t.Errorf("1000 clients asked for one blob at %v", got)
		}
	})
}

// A client that knows one read proxy says so, in a request of its own; one that knows several does not. HomeOf is where the latter goes.
func TestSole(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		all := readers(w, 3)
		sole := func() (n int) {
			for _, p := range all {
				n += p.took("sole")
			}
			return n
		}
		req := &scribev1.FetchRequest{Pointers: [][]byte{blob(1)}, Category: "c", Peer: true}
		if _, err := w.cell("seed").ReadProxy().Fetch(t.Context(), req); err != nil || sole() != 0 {
			t.Errorf("a client of three: %v", err)
		}
		var hosts, urls []string
		for host := range all {
			hosts, urls = append(hosts, host), append(urls, url(host))
		}
		p, err := pointer.Decode(blob(1))
		if err != nil {
			t.Fatal(err)
		}
		if home := hosts[HomeOf(p.Blob, urls)]; taken(all)[home] != 1 {
			t.Errorf("the home is %s, which was not asked", home)
		}
		if _, err := w.cell("proxy1").ReadProxy().Fetch(t.Context(), req); err != nil || sole() != 1 || req.GetSole() {
			t.Errorf("a client of one: %v, and the caller's request is %v", err, req)
		}
	})
}

// While everybody refuses, calls cost little more than they would if nobody did: repeats are a share of the calls, beyond what was
// saved up.
func TestRetryBudget(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		all := readers(w, 5)
		for _, p := range all {
			p.fetch = busy(time.Second)
		}
		c := w.cell("seed")
		const calls = 2000
		for n := range calls {
			if err := fetch(t.Context(), c, blob(byte(n))); rpc.ReasonOf(err) != scribev1.Reason_REASON_OVERLOADED || rpc.Info(err).GetRetryAfter().AsDuration() <= 0 {
				t.Fatalf("got %v", err)
			}
		}
		requests := 0
		for _, n := range taken(all) {
			requests += n
		}
		if most := calls + calls*retryShare + maxRetries; float64(requests) > most+1 {
			t.Errorf("%d requests for %d calls, at most %v", requests, calls, most)
		}
		if s := c.FetchStats(); s.Calls != calls || s.Repeats != uint64(requests-calls) || s.Exhausted == 0 {
			t.Errorf("%+v, %d requests", s, requests)
		}
		// Calls that succeed fill it again, but no further than it was.
		for _, p := range all {
			p.fetch = nil
		}
		pass(passOver + time.Second)
		for n := range 10 * maxRetries {
			if err := fetch(t.Context(), c, blob(byte(n))); err != nil {
				t.Fatal(err)
			}
		}
		saved := 0
		for c.retries.TakeRetry() {
			saved++
		}
		if saved != maxRetries {
			t.Errorf("%d repeats are saved up", saved)
		}
	})
}

// What a home refuses goes to one fallback a blob, the same one for all clients; those of different blobs differ, so that one hot
// instance does not make another one hot. When the home serves again, it gets its blobs back.
func TestSaltedFallback(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		all := readers(w, 8)
		var hot string
		var of [][]byte // the hot instance's
		for n := range byte(250) {
			h := homeOf(t, blob(n), all)
			if hot == "" {
				hot = h
			}
			if h == hot {
				of = append(of, blob(n))
			}
		}
		all[hot].fetch = busy(time.Second)
		where := func(c *Cell, b []byte) (at string) {
			if err := fetch(t.Context(), c, b); err != nil {
				t.Fatal(err)
			}
			got := taken(all)
			delete(got, hot)
			if len(got) != 1 {
				t.Fatalf("asked at %v", got)
			}
			for host := range got {
				at = host
			}
			return at
		}
		first, second := w.cell("seed"), w.cell("seed")
		spread := map[string]int{}
		for _, b := range of {
			at := where(first, b)
			if other := where(second, b); other != at {
				t.Errorf("one client goes to %s, another to %s", at, other)
			}
			spread[at]++
		}
		if len(spread) < 4 {
			t.Errorf("what %d blobs overflow with goes to %v", len(of), spread)
		}
		// Of each blob it is among a few.
		for _, b := range of {
			urls := make([]string, 0, len(all))
			for host := range all {
				urls = append(urls, url(host))
			}
			orderByAffinity(*blobKey([][]byte{b}), urls)
			if at := url(where(first, b)); at != urls[1] {
				t.Errorf("it goes to %s, the fallback is %s", at, urls[1])
			}
		}
		all[hot].fetch = nil
		pass(passOver + time.Second)
		taken(all)
		for _, b := range of {
			if err := fetch(t.Context(), first, b); err != nil {
				t.Fatal(err)
			}
		}
		if got := taken(all); got[hot] != len(of) || len(got) != 1 {
			t.Errorf("afterwards they are asked for at %v", got)
		}
	})
}

// A home that will not be busy for long is waited for: moving a blob costs a fetch from the store.
func TestBriefRefusalIsWaitedFor(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		all := readers(w, 4)
		h := all[homeOf(t, blob(3), all)]
		refused := false
		h.fetch = func(ctx context.Context) error {
			if !refused {
				refused = true
				return busy(20 * time.Millisecond)(ctx)
			}
			return nil
		}
		c := w.cell("seed")
		begin := time.Now()
		if err := fetch(t.Context(), c, blob(3)); err != nil {
			t.Fatal(err)
		}
		if got := taken(all); got[h.host] != 2 || len(got) != 1 || time.Since(begin) != 20*time.Millisecond {
			t.Errorf("asked at %v, it took %v", got, time.Since(begin))
		}
		if s := c.FetchStats(); s.Repeats != 1 || s.Waits != 1 {
			t.Errorf("%+v", s)
		}
		// Once; a home that refuses again is not waited for a second time.
		h.fetch = busy(20 * time.Millisecond)
		if err := fetch(t.Context(), c, blob(3)); err != nil {
			t.Fatal(err)
		}
		if got := taken(all); got[h.host] != 2 || len(got) != 2 {
			t.Errorf("asked at %v", got)
		}
	})
}

// A request for blobs of several homes is divided, and its answer is in the order that was asked for; homes that are down or busy are
// made up for by others; what nobody serves is an error of its own payloads alone.
func TestSplitRequests(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		all := readers(w, 5)
		c := w.cell("seed")
		var pointers [][]byte
		homes := map[string]int{}
		for n := range byte(60) {
			pointers = append(pointers, blob(n))
			homes[homeOf(t, blob(n), all)]++
		}
		pointers[17] = []byte("damaged") // stays with the one before it
		homes[homeOf(t, blob(17), all)]--
		homes[homeOf(t, blob(16), all)]++
		ask := func() []*scribev1.Payload {
			t.Helper()
			res, err := c.ReadProxy().Fetch(t.Context(), &scribev1.FetchRequest{Pointers: pointers, Category: "a"})
			if err != nil {
				t.Fatal(err)
			}
			for i, p := range res.GetPayloads() {
				if p.GetError() == nil && !bytes.Equal(p.GetData(), pointers[i]) {
					t.Fatalf("payload %d is another one's", i)
				}
			}
			return res.GetPayloads()
		}
		if n := len(ask()); n != len(pointers) {
			t.Errorf("%d payloads of %d", n, len(pointers))
		}
		for host, n := range taken(all) {
			if n != 1 || len(all[host].mu.blobs) != homes[host] {
				t.Errorf("%s: %d requests for %d pointers, it is home to %d", host, n, len(all[host].mu.blobs), homes[host])
			}
		}
		if s := c.FetchStats(); s.Calls != 1 || s.Parts != uint64(len(homes)) {
			t.Errorf("%+v", s)
		}
		// An answer that one of them cuts is cut there; what was behind it is asked for again.
		cut := homeOf(t, pointers[0], all)
		all[cut].most = 2
		n, at := len(ask()), 0
		for i, seen := 0, 0; i < len(pointers); i++ {
			if homeOf(t, blob(byte(i)), all) == cut && i != 17 {
				if seen++; seen == 3 {
					at = i
					break
				}
			}
		}
		if n != at {
			t.Errorf("%d payloads, the third of the one that cuts is number %d", n, at)
		}
		all[cut].most = 0
		// Down and busy ones are made up for.
		hosts := make([]string, 0, len(all))
		for host := range all {
			hosts = append(hosts, host)
		}
		all[hosts[0]].stop()
		all[hosts[1]].fetch = busy(time.Second)
		for i, p := range ask() {
			if p.GetError() != nil {
				t.Errorf("payload %d: %v", i, p.GetError())
			}
		}
		// Nobody serves what all but one refuse: its part comes, the rest has errors that say when to try again.
		pass(passOver + time.Second)
		for _, host := range hosts[1:4] {
			all[host].fetch = busy(2 * time.Second)
		}
		all[hosts[4]].fetch = nil
		served, refused := 0, 0
		for _, p := range ask() {
			if e := p.GetError(); e == nil {
				served++
			} else if refused++; e.GetReason() != scribev1.Reason_REASON_OVERLOADED && e.GetReason() != scribev1.Reason_REASON_NO_BACKEND {
				t.Errorf("got %v", e)
			}
		}
		if served < homes[hosts[4]] {
			t.Errorf("%d served, %d refused; the one that serves is home to %d", served, refused, homes[hosts[4]])
		}
		// A request that is not valid is that of the whole.
		for _, p := range all {
			p.fetch = func(context.Context) error { return rpc.Errorf(scribev1.Reason_REASON_UNKNOWN_CATEGORY, "no category") }
		}
		pass(passOver + time.Second)
		if _, err := c.ReadProxy().Fetch(t.Context(), &scribev1.FetchRequest{Pointers: pointers, Category: "a"}); rpc.ReasonOf(err) != scribev1.Reason_REASON_UNKNOWN_CATEGORY {
			t.Errorf("got %v", err)
		}
	})
}

// However urls come in, the order of a key is the same, its home is first, and the fallbacks are the ones next by weight.
func TestAffineOrder(t *testing.T) {
	urls := []string{"http://a", "http://b", "http://c", "http://d", "http://e"}
	second := map[string]int{}
	for n := range byte(200) {
		p, err := pointer.Decode(blob(n))
		if err != nil {
			t.Fatal(err)
		}
		key := *blobKey([][]byte{pointer.Append(nil, &p)})
		one := append([]string(nil), urls...)
		other := []string{urls[3], urls[0], urls[4], urls[2], urls[1]}
		orderByAffinity(key, one)
		orderByAffinity(key, other)
		if fmt.Sprint(one) != fmt.Sprint(other) || one[0] != homeURL(key, urls) {
			t.Fatalf("%v and %v, home %s", one, other, homeURL(key, urls))
		}
		second[one[1]]++
		few := []string{"http://a", "http://b"}
		orderByAffinity(key, few)
		orderByAffinity(key, few[:1])
	}
	if len(second) != len(urls) {
		t.Errorf("fallbacks are %v", second)
	}
}
