package writeproxy

import (
	"math/rand/v2"
	"sync"

	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// amount counts frames and what is in them.
type amount struct{ frames, bytes, messages int64 }

func (a *amount) plus(b amount) {
	a.frames += b.frames
	a.bytes += b.bytes
	a.messages += b.messages
}

func total(a, b amount) amount {
	a.plus(b)
	return a
}

func (a amount) minus(b amount) amount {
	return amount{frames: a.frames - b.frames, bytes: a.bytes - b.bytes, messages: a.messages - b.messages}
}

func (it *item) amount() amount {
	return amount{frames: 1, bytes: int64(len(it.bytes)), messages: int64(it.messages)}
}

// counts says what became of the frames that were received. At all times received = acknowledged + failed + sampled out + in
// flight. Requests that were refused as a whole are not in it.
type counts struct {
	received     amount
	acknowledged amount
	sampledOut   amount
	failed       map[scribev1.Reason]amount
}

func (c *counts) plus(other *counts) {
	c.received.plus(other.received)
	c.acknowledged.plus(other.acknowledged)
	c.sampledOut.plus(other.sampledOut)
	for reason, a := range other.failed {
		sum := c.failed[reason]
		sum.plus(a)
		c.failed[reason] = sum
	}
}

// inFlight is what has no outcome yet.
func (c *counts) inFlight() amount {
	sum := c.received.minus(c.acknowledged).minus(c.sampledOut)
	for _, a := range c.failed {
		sum = sum.minus(a)
	}
	return sum
}

const ledgerStripes = 16

// ledger counts frames. A request uses one stripe, so that requests seldom wait for each other, and what is in one
// stripe balances.
type ledger struct {
	stripes [ledgerStripes]ledgerStripe
}

type ledgerStripe struct {
	sync.Mutex
	counts counts

	_ [64]byte // neighbours are used by other processors
}

func newLedger() *ledger {
	l := new(ledger)
	for i := range l.stripes {
		l.stripes[i].counts.failed = make(map[scribev1.Reason]amount)
	}
	return l
}

// stripe returns the one that a request uses.
func (l *ledger) stripe() *ledgerStripe { return &l.stripes[rand.N(ledgerStripes)] }

// counts returns the sums, in which received is never less than what became of it.
func (l *ledger) counts() counts {
	sum := counts{failed: make(map[scribev1.Reason]amount)}
	for i := range l.stripes {
		s := &l.stripes[i]
		s.Lock()
		sum.plus(&s.counts)
		s.Unlock()
	}
	return sum
}

// received counts the frames of a request.
func (s *ledgerStripe) received(items []item) {
	var sum amount
	for i := range items {
		sum.plus(items[i].amount())
	}
	s.Lock()
	defer s.Unlock()
	s.counts.received.plus(sum)
}

// answered counts what became of them.
func (s *ledgerStripe) answered(items []item) {
	sum := counts{failed: make(map[scribev1.Reason]amount)}
	var run amount // of neighbours that failed for one reason
	for i := range items {
		it := &items[i]
		if it.result == nil { // a bug, which must not be taken for an acknowledgement
			it.result = &scribev1.FrameResult{Error: rpc.Info(errNoResult)}
		}
		switch info := it.result.GetError(); {
		case info != nil:
			run.plus(it.amount())
			if i == len(items)-1 || items[i+1].result.GetError().GetReason() != info.GetReason() || items[i+1].result.GetError() == nil {
				sum.failed[info.GetReason()] = total(sum.failed[info.GetReason()], run)
				run = amount{}
			}
		case it.result.GetSampledOut():
			sum.sampledOut.plus(it.amount())
		default:
			sum.acknowledged.plus(it.amount())
		}
	}
	s.Lock()
	defer s.Unlock()
	s.counts.plus(&sum)
}
