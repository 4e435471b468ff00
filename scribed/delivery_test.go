package scribed

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"scribe/internal/format/delivery"
	"scribe/internal/format/record"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// countingConfig makes a configuration count deliveries and report them every second.
func countingConfig(cfg Config) Config {
	cfg = reporting(cfg)
	cfg.CountDelivery = true
	return cfg
}

// begun is the base time of the tests' frames with a number, Unix microseconds: ten are of one minute.
func begun(n int) int64 {
	return time.Date(2000, 1, 1, 0, n/10, n%10, 0, time.UTC).UnixMicro() // when a bubble's time begins
}

// produce writes numbered messages of a producer, each in a frame.
func (c *cell) produce(ack scribev1.AckLevel, category string, producer uint64, from, to, size int) {
	c.t.Helper()
	for i := from; i < to; i++ {
		frame := buildFrame(c.t, record.Envelope{
			Category: category, Sequenced: true, Producer: producer, Epoch: 1, FirstSequence: uint64(i), BaseTime: begun(i),
		}, fmt.Sprintf("%d%s", i, strings.Repeat("x", size)))
		res, err := c.Write(c.t.Context(), &scribev1.WriteRequest{Frames: frame, Ack: ack})
		if err != nil || res.GetResults()[0].GetError() != nil {
			c.t.Errorf("message %d: %v, %v", i, res, err)
		}
		<-time.After(10 * time.Millisecond)
	}
}

// account adds up what the upstream has of an agent's counts of a category.
func (c *cell) account(category string) []delivery.Line {
	c.t.Helper()
	c.up.mu.Lock()
	defer c.up.mu.Unlock()
	a := delivery.NewAccount(category, time.UnixMicro(begun(0)))
	for i := range c.up.rows {
		r := &c.up.rows[i]
		a.AddRow(&r.Row, r.minute, r.at)
	}
	return a.Lines()
}

func sumLines(lines []delivery.Line) (sum delivery.Line) {
	sum.Reasons = map[string]int64{}
	for _, l := range lines {
		sum.Produced += l.Produced
		sum.Stored += l.Stored
		sum.Dropped += l.Dropped
		sum.Sampled += l.Sampled
		sum.Pending += l.Pending
		sum.Unaccounted += l.Unaccounted
		for reason, n := range l.Reasons {
			sum.Reasons[reason] += n
		}
	}
	return sum
}

// countStored counts the upstream's messages of a category.
func (c *cell) countStored(category string) int64 {
	c.up.mu.Lock()
	defer c.up.mu.Unlock()
	return int64(len(c.up.stored[category]))
}

// What an agent takes, and what becomes of it, is counted by minute and producer, exactly, whatever happens in between.
func TestDeliveryIsCounted(t *testing.T) {
	cfg := countingConfig(spooling(DefaultConfig()))
	run(t, cfg, func(t *testing.T, c *cell) {
		c.Scribed = c.restartAs(cfg, "host-7", "agent-7")
		c.up.samples = func(m string) bool { return strings.HasPrefix(m, "a/1") } // 1 and 10 to 19
		c.produce(none, "a", 7, 0, 25, 0)
		c.produce(committed, "a", 7, 25, 30, 0)
		c.produce(spooled, "b", 8, 0, 5, 0)
		// A call that fails is its caller's again.
		c.up.replies(func(int, *call) reply {
			return reply{whole: rpc.Errorf(scribev1.Reason_REASON_DENIED, "no")}
		})
		frame := buildFrame(t, record.Envelope{Category: "a", Sequenced: true, Producer: 7, Epoch: 1, FirstSequence: 30, BaseTime: begun(29)}, "30")
		if res, err := c.Write(t.Context(), &scribev1.WriteRequest{Frames: frame, Ack: committed}); err == nil && res.GetResults()[0].GetError() == nil {
			t.Error("a frame that was refused was acknowledged")
		}
		c.up.replies(nil)
		<-time.After(10 * time.Second)
		lines := c.account("a")
		if len(lines) != 3 {
			t.Fatalf("the lines are %+v", lines)
		}
		for i, l := range lines {
			wantSampled := []int64{1, 10, 0}[i]
			if l.Host != "host-7" || l.Produced != 10 || l.Stored != 10-wantSampled || l.Sampled != wantSampled || l.Pending != 0 || l.Dropped != 0 || l.Unaccounted != 0 ||
				!l.Minute.Equal(time.UnixMicro(begun(10*i))) {
				t.Errorf("line %d is %+v", i, l)
			}
		}
		if sum := sumLines(c.account("b")); sum.Produced != 5 || sum.Stored != 5 {
			t.Errorf("of b: %+v", sum)
		}
		if lines := c.account(delivery.Category); len(lines) != 0 {
			t.Errorf("the counts are counted: %+v", lines)
		}
		c.mustBalance()
	})
}

// What an agent drops while the upstream is away is found at its host, with the reason, and what it still has is pending there; also after it was
// stopped, or killed once it had noted that.
func TestDeliveryOfAnOutage(t *testing.T) {
	for _, killed := range []bool{false, true} {
		cfg := countingConfig(spooling(DefaultConfig()))
		cfg.Rules = []Rule{{Pattern: "a", WhenFull: DropOldest, MaxBytes: 100_000}}
		run(t, cfg, func(t *testing.T, c *cell) {
			c.Scribed = c.restartAs(cfg, "host-7", "agent-7")
			c.produce(none, "a", 7, 0, 10, 1000)
			<-time.After(10 * time.Second)
			c.up.replies(onlyCounts)
			const n = 300
			c.produce(none, "a", 7, 10, n, 1000)
			<-time.After(10 * time.Second)
			sum := sumLines(c.account("a"))
			if sum.Produced != n || sum.Stored != c.countStored("a") || sum.Dropped == 0 || sum.Dropped != sum.Reasons["agent:full"] || sum.Pending == 0 || sum.Unaccounted != 0 ||
				sum.Produced != sum.Stored+sum.Dropped+sum.Pending {
				t.Errorf("killed %v: during the outage: %+v, %d are stored", killed, sum, c.countStored("a"))
			}
			c.up.replies(failing(1<<30, scribev1.Reason_REASON_NO_BACKEND)) // now it takes nothing at all
			c.produce(none, "a", 7, n, 2*n, 1000)
			if killed {
				<-time.After(10 * time.Second)
				c.crash(0, nil)
			} else if err := c.Close(t.Context()); err != nil {
				t.Error(err)
			}
			c.Scribed = c.newAgent(cfg, "host-7", "agent-7")
			c.down.Store(false)
			<-time.After(10 * time.Second)
			c.up.replies(nil)
			<-time.After(time.Minute)
			reports, others := c.reports("a")
			sum = sumLines(c.account("a"))
			if sum.Produced != 2*n || sum.Stored != int64(others) || sum.Dropped != 2*n-int64(others) || sum.Pending != 0 || sum.Unaccounted != 0 {
				t.Errorf("killed %v: after it: %+v, of %d messages %d are stored, and %d reports tell of losses", killed, sum, 2*n, others, len(reports))
			}
			if kept, err := readReportFile(c.fs, c.keptDelivery.path, maxDeliveryFile); err != nil || len(kept) > 0 {
				t.Errorf("%d bytes of counts are kept that are stored, %v", len(kept), err)
			}
		})
	}
}

// A crash takes what was in memory only, and it is seen that nobody has it.
func TestDeliveryOfACrash(t *testing.T) {
	cfg := countingConfig(spooling(DefaultConfig()))
	cfg.SpillAfter = time.Hour // nothing leaves the memory
	run(t, cfg, func(t *testing.T, c *cell) {
		c.Scribed = c.restartAs(cfg, "host-7", "agent-7")
		c.up.replies(onlyCounts)
		c.produce(none, "a", 7, 0, 20, 0)
		<-time.After(10 * time.Second)
		if sum := sumLines(c.account("a")); sum.Pending != 20 || sum.Unaccounted != 0 {
			t.Errorf("before the crash: %+v", sum)
		}
		c.crash(0, nil)
		c.Scribed = c.newAgent(cfg, "host-7", "agent-7")
		c.down.Store(false)
		<-time.After(20 * time.Second)
		if sum := sumLines(c.account("a")); sum.Produced != 20 || sum.Pending != 0 || sum.Unaccounted != 20 {
			t.Errorf("after the crash: %+v", sum)
		}
	})
}

// onlyCounts is an upstream that takes counts, and nothing else.
func onlyCounts(int, *call) reply {
	return reply{each: func(m string) error {
		if strings.HasPrefix(m, delivery.Category+"/") {
			return nil
		}
		return rpc.Errorf(scribev1.Reason_REASON_NO_BACKEND, "away")
	}}
}

// restartAs closes the agent, and returns another one with a name.
func (c *cell) restartAs(cfg Config, host, agent string) *Scribed {
	c.t.Helper()
	if err := c.Close(c.t.Context()); err != nil {
		c.t.Fatal(err)
	}
	return c.newAgent(cfg, host, agent)
}

func (c *cell) newAgent(cfg Config, host, agent string) *Scribed {
	c.t.Helper()
	s, err := New(cfg, Deps{Upstream: c.up, FS: c.fs, Host: host, Agent: agent})
	if err != nil {
		c.t.Fatal(err)
	}
	return s
}
