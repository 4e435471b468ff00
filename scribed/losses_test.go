package scribed

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"scribe/internal/format/loss"
	"scribe/internal/format/record"
	"scribe/internal/role/request"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// reporting makes a configuration report losses every second.
func reporting(cfg Config) Config {
	cfg.ReportLosses = time.Second
	return cfg
}

// reports returns the reports that the upstream has of a category, in order, and how many other messages.
func (c *cell) reports(category string) (reports []loss.Report, others int) {
	c.t.Helper()
	c.up.mu.Lock()
	defer c.up.mu.Unlock()
	for _, text := range c.up.stored[category] {
		frame, err := loss.AppendFrame(nil, category, 0, 0, &loss.Report{Messages: 1, Reason: "x", By: "x", Run: "x"})
		if err != nil {
			c.t.Fatal(err)
		}
		// The upstream keeps the payload alone: it is looked at as if it had the attribute.
		var d record.Decoder
		var r record.Record
		if _, err := d.Reset(frame); err != nil || !d.Next(&r) {
			c.t.Fatal(err)
		}
		if rep, ok := loss.Parse([]byte(text), r.Attributes); ok {
			reports = append(reports, rep)
		} else {
			others++
		}
	}
	return reports, others
}

// What a rule drops while the upstream is unavailable is told to the readers once it is available again, exactly.
func TestLossesAreReported(t *testing.T) {
	for name, c := range map[string]struct {
		cfg func() Config
		all bool // shards, maybe: the spool does not know which
	}{
		"newest, memory": {cfg: func() Config {
			cfg := DefaultConfig()
			cfg.MemoryBytes = 1 << 20
			cfg.Rules = []Rule{{Pattern: "a", WhenFull: DropNewest, MaxBytes: 20_000}}
			return cfg
		}},
		"oldest, memory": {cfg: func() Config {
			cfg := DefaultConfig()
			cfg.MemoryBytes = 1 << 20
			cfg.Rules = []Rule{{Pattern: "a", WhenFull: DropOldest, MaxBytes: 20_000}}
			return cfg
		}},
		"oldest, spool": {all: true, cfg: func() Config {
			cfg := spooling(DefaultConfig())
			cfg.Rules = []Rule{{Pattern: "a", WhenFull: DropOldest, MaxBytes: 100_000}}
			return cfg
		}},
		"expired, spool": {all: true, cfg: func() Config {
			cfg := spooling(DefaultConfig())
			cfg.Rules = []Rule{{Pattern: "a", MaxAge: time.Second}}
			return cfg
		}},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, reporting(c.cfg()), func(t *testing.T, cl *cell) {
				cl.up.replies(failing(1<<30, scribev1.Reason_REASON_NO_BACKEND))
				begun := time.Now()
				const n = 300
				for i := range n {
					cl.mustWrite(none, fmt.Sprintf("a/%d%s", i, strings.Repeat("x", 1000)))
					<-time.After(10 * time.Millisecond)
				}
				<-time.After(time.Minute)
				cl.up.replies(nil)
				<-time.After(time.Minute)
				cl.mustBalance()
				reports, others := cl.reports("a")
				lost := uint64(0)
				numbers := map[uint64]bool{}
				for _, r := range reports {
					lost += r.Messages
					if r.Messages != r.Frames || r.Bytes < 1000*r.Messages || r.By != loss.ByAgent || r.Run != reports[0].Run || numbers[r.Number] ||
						r.AllShards && !c.all || r.Since < begun.UnixMicro() || r.Until < r.Since {
						t.Errorf("report %+v", r)
					}
					numbers[r.Number] = true
				}
				dropped := request.Amount{}
				for _, a := range cl.snapshot().dropped {
					dropped = dropped.Plus(a)
				}
				if len(reports) > 6 || lost == 0 || int(lost)+others != n || int64(lost) != dropped.Messages {
					t.Errorf("%d messages arrived, %d are reported in %d reports, %d were counted, of %d", others, lost, len(reports), dropped.Messages, n)
				}
			})
		})
	}
}

// A report whose answer was lost is sent again as it was; one that is dropped itself is told by the next; one that its category does not
// take is given up.
func TestReportsThatFail(t *testing.T) {
	run(t, reporting(DefaultConfig()), func(t *testing.T, c *cell) {
		drop := func(category string, messages int64) {
			c.mu.Lock()
			c.mu.queue.countLoss(category, fullReason, request.Amount{Frames: 1, Bytes: 10, Messages: messages}, c.now())
			// It was accepted before.
			c.mu.queue.counts.accepted = c.mu.queue.counts.accepted.Plus(request.Amount{Frames: 1, Bytes: 10, Messages: messages})
			c.mu.Unlock()
		}
		var sent []string
		c.up.replies(func(i int, cl *call) reply {
			sent = append(sent, cl.messages...)
			if i == 0 {
				return reply{whole: rpc.Errorf(scribev1.Reason_REASON_UNKNOWN_OUTCOME, "the answer was lost")}
			}
			return reply{}
		})
		drop("a", 7)
		<-time.After(10 * time.Second)
		if len(sent) != 2 || sent[0] != sent[1] || !strings.Contains(sent[0], `"messages":7,`) {
			t.Fatalf("the reports are %q", sent)
		}
		sent = nil
		c.up.replies(func(int, *call) reply {
			return reply{whole: rpc.Errorf(scribev1.Reason_REASON_UNKNOWN_CATEGORY, "there is none")}
		})
		drop("b", 5)
		<-time.After(10 * time.Second)
		c.mu.Lock()
		if told, untold := c.mu.queue.losses.Counts(); told != 1 || untold != 5 || !c.mu.queue.losses.Idle() {
			t.Errorf("%d told, %d not", told, untold)
		}
		c.mu.Unlock()

		// A report among what is dropped.
		r := loss.Report{Reason: "expired", Messages: 40, Frames: 4, Bytes: 400, Since: 1, Until: 2, By: loss.ByAgent, Run: "other", Number: 9}
		f, err := loss.AppendFrame(nil, "c", 3, 0, &r)
		if err != nil {
			t.Fatal(err)
		}
		sent = nil
		c.up.replies(func(_ int, cl *call) reply {
			sent = append(sent, cl.messages...)
			return reply{}
		})
		c.mu.Lock()
		sum := c.mu.queue.countLostFrames("c", fullReason, []queuedFrame{{bytes: f, messages: 1}}, c.now())
		c.mu.queue.counts.accepted = c.mu.queue.counts.accepted.Plus(sum)
		c.mu.Unlock()
		<-time.After(10 * time.Second)
		if len(sent) != 1 || !strings.Contains(sent[0], `"reason":"expired","messages":40,"frames":4,"bytes":400,"since":1,"until":2,`) {
			t.Errorf("the report is %q", sent)
		}
	})
}

// What is open when an agent ends is reported; sums are bounded, and what is over the bound is counted.
func TestReportsAtTheEnd(t *testing.T) {
	run(t, reporting(spooling(DefaultConfig())), func(t *testing.T, c *cell) {
		c.mu.Lock()
		for i := range loss.MaxSums + 10 {
			a := request.Amount{Frames: 1, Bytes: 1, Messages: 1}
			c.mu.queue.countLoss(fmt.Sprintf("c%d", i), fullReason, a, c.now())
			c.mu.queue.counts.accepted = c.mu.queue.counts.accepted.Plus(a)
		}
		c.mu.Unlock()
		if err := c.Close(t.Context()); err != nil {
			t.Error(err)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		if told, untold := c.mu.queue.losses.Counts(); untold != 10 || told != loss.MaxSums || !c.mu.queue.losses.Idle() {
			t.Errorf("%d told, %d not", told, untold)
		}
	})
}

// What was dropped during an outage is told after it, exactly, also by the next run: of an agent that was closed, and of one that was killed once
// it had noted it. Reports say where they come from.
func TestLossesOutliveTheAgent(t *testing.T) {
	for _, killed := range []bool{false, true} {
		cfg := reporting(spooling(DefaultConfig()))
		cfg.Rules = []Rule{{Pattern: "a", WhenFull: DropOldest, MaxBytes: 100_000}}
		run(t, cfg, func(t *testing.T, c *cell) {
			c.up.replies(failing(1<<30, scribev1.Reason_REASON_NO_BACKEND))
			const n = 300
			for i := range n {
				c.mustWrite(none, fmt.Sprintf("a/%d%s", i, strings.Repeat("x", 1000)))
				<-time.After(10 * time.Millisecond)
			}
			if killed {
				<-time.After(10 * time.Second)
				c.crash(0, nil)
			} else if err := c.Close(t.Context()); err != nil {
				t.Error(err)
			}
			var err error
			if c.Scribed, err = New(cfg, Deps{Upstream: c.up, FS: c.fs, Host: "host-7", Agent: "agent-7"}); err != nil {
				t.Fatal(err)
			}
			c.down.Store(false)
			// More is dropped while the report of the earlier run waits.
			for i := range n {
				c.mustWrite(none, fmt.Sprintf("a/%d%s", n+i, strings.Repeat("x", 1000)))
				<-time.After(10 * time.Millisecond)
			}
			<-time.After(10 * time.Second)
			c.up.replies(nil)
			<-time.After(time.Minute)
			reports, others := c.reports("a")
			told, named := uint64(0), 0
			seen := map[string]bool{}
			for _, r := range reports {
				id := fmt.Sprint(r.Run, "/", r.Number)
				if !seen[id] {
					told += r.Messages
				}
				if seen[id] = true; r.Host == "host-7" && r.Agent == "agent-7" {
					named++
				}
			}
			if int(told)+others != 2*n || others == 0 || named == 0 {
				t.Errorf("killed %v: %d messages arrived and %d are told in %d reports, %d of them with a host; want %d in all", killed, others, told, len(reports), named, 2*n)
			}
			if kept, err := readReportFile(c.fs, c.kept.path, maxLossFile); err != nil || len(kept) > 0 {
				t.Errorf("%d bytes of reports are kept that are stored, %v", len(kept), err)
			}
		})
	}
}
