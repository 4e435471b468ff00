package test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"scribe/consumer"
	"scribe/producer"
	"scribe/test/program"
)

// kills is how often the process is killed in a row.
const kills = 20

// TestKillUnderLoad kills `scribe up` at random moments while eight writers write, twenty times in a row on the same data. After
// each restart everything that was acknowledged is there, nothing else than what was written is, and LSNs are dense. The seed is
// printed; SCRIBE_TEST_SEED repeats it.
func TestKillUnderLoad(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("SCRIBE_TEST_SEED"); s != "" {
		var err error
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("SCRIBE_TEST_SEED=%d", seed)
	rng := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // reproducible on purpose
	data := filepath.Join(t.TempDir(), "data")
	h := &history{sent: map[string]bool{}, acked: map[string]bool{}}
	for round := range kills {
		up := serve(t, nil, "up", "--data", data, "--listen", "127.0.0.1:0")
		h.check(t, up.URL)
		h.load(t, up, round, 1+rng.IntN(300), time.Duration(rng.IntN(3000))*time.Microsecond)
	}
	up := serve(t, nil, "up", "--data", data, "--listen", "127.0.0.1:0")
	h.check(t, up.URL)
	t.Logf("%d messages sent, %d acknowledged", len(h.sent), len(h.acked))
	where := []string{"--data", data}
	if program.CountNodes(t) > 0 { // their folders are not read without them
		where = []string{"--server", up.URL}
	} else {
		up.Stop()
	}
	if r := cli(t, nil, append([]string{"inspect", "log", "load", "--verify"}, where...)...); r.Code != 0 {
		t.Errorf("inspect log: exit code %d\n%s%s", r.Code, r.Stdout, r.Stderr)
	}
}

// history is what writers know.
type history struct {
	mu          sync.Mutex
	sent, acked map[string]bool
}

// load writes until acks messages are acknowledged, lets further writes begin for a moment, and kills the process in the middle.
func (h *history) load(t *testing.T, up *program.Process, round, acks int, moment time.Duration) {
	t.Helper()
	p, err := producer.New(up.URL, producer.WithRetries(0), producer.WithLinger(0), producer.WithMaxInFlight(8))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var wg sync.WaitGroup
	enough := make(chan struct{})
	var once sync.Once
	begin := len(h.acked)
	for w := range 8 {
		wg.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				id := fmt.Sprintf("round %d writer %d message %d", round, w, i)
				h.mu.Lock()
				h.sent[id] = true
				h.mu.Unlock()
				if err := p.Write(ctx, "load", producer.Message{Payload: []byte(id)}); err != nil {
					return // the outcome is unknown: the message may be there or not
				}
				h.mu.Lock()
				h.acked[id] = true
				if len(h.acked)-begin >= acks {
					once.Do(func() { close(enough) })
				}
				h.mu.Unlock()
			}
		})
	}
	select {
	case <-enough:
	case <-up.Done:
		t.Fatalf("the server ended by itself: %v\n%s", up.Err, up.Log)
	case <-time.After(waitLimit):
		t.Fatalf("%d messages were not acknowledged in time\n%s", acks, up.Log)
	}
	<-time.After(moment) // writers are in the middle of anything when this is over
	up.Kill()
	cancel()
	wg.Wait()
	if err := p.Close(ctx); err != nil && !errors.Is(err, producer.ErrClosed) {
		t.Errorf("close the producer: %v", err)
	}
}

// check reads everything and compares it with the history.
func (h *history) check(t *testing.T, url string) {
	t.Helper()
	if len(h.sent) == 0 {
		return
	}
	c, err := consumer.New(url, "load", consumer.WithStart(consumer.Earliest()), consumer.WithUntilEnd())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	seen := map[string]bool{}
	next := map[uint64]uint64{}
	for rec, err := range c.Records(ctx) {
		if err != nil {
			t.Fatalf("read: %v", err)
		}
		id := string(rec.Payload)
		if !h.sent[id] {
			t.Fatalf("%q was never written", id)
		}
		if seen[id] {
			t.Errorf("%q was delivered twice although its producer does not retry", id)
		}
		seen[id] = true
		shard, lsn := uint64(rec.Shard), uint64(rec.LSN)
		if want := next[shard]; lsn != want && lsn != want+1 {
			t.Fatalf("shard %d: LSN %d follows %d: the log has a gap", shard, lsn, want)
		}
		next[shard] = lsn
	}
	for id := range h.acked {
		if !seen[id] {
			t.Errorf("%q was acknowledged and is lost", id)
		}
	}
}
