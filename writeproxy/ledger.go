package writeproxy

import (
	"maps"
	"sync"

	"scribe/internal/role/request"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

func (it *frameItem) amount() request.Amount {
	return request.Amount{Frames: 1, Bytes: int64(len(it.bytes)), Messages: int64(it.messages)}
}

// frameCounts counts received frames by outcome. At all times received = acknowledged + failed + sampled out + in flight.
// Requests that are refused as a whole are not counted.
type frameCounts struct {
	received     request.Amount
	acknowledged request.Amount
	sampledOut   request.Amount
	failed       map[string]request.Amount // by rpc.ReasonLabel, which bounds what other processes can add
}

// addCounts adds the outcomes of a request.
func (c *frameCounts) addCounts(other *frameCounts) {
	c.acknowledged = c.acknowledged.Plus(other.acknowledged)
	c.sampledOut = c.sampledOut.Plus(other.sampledOut)
	for reason, a := range other.failed {
		c.failed[reason] = c.failed[reason].Plus(a)
	}
}

// inFlight returns the frames without an outcome.
func (c *frameCounts) inFlight() request.Amount {
	sum := c.received.Minus(c.acknowledged).Minus(c.sampledOut)
	for _, a := range c.failed {
		sum = sum.Minus(a)
	}
	return sum
}

// frameLedger counts frames. A request locks it twice.
type frameLedger struct {
	mu struct {
		sync.Mutex
		counts frameCounts
	}
}

func newLedger() *frameLedger {
	l := &frameLedger{}
	l.mu.counts.failed = make(map[string]request.Amount)
	return l
}

// readCounts returns the counts.
func (l *frameLedger) readCounts() frameCounts {
	l.mu.Lock()
	defer l.mu.Unlock()
	counts := l.mu.counts
	counts.failed = maps.Clone(counts.failed)
	return counts
}

// countReceived counts the frames of a request.
func (l *frameLedger) countReceived(items []frameItem) {
	var sum request.Amount
	for i := range items {
		sum = sum.Plus(items[i].amount())
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.counts.received = l.mu.counts.received.Plus(sum)
}

// countAnswered counts the outcomes of a request's frames.
func (l *frameLedger) countAnswered(items []frameItem) {
	sum := frameCounts{failed: make(map[string]request.Amount)}
	var run request.Amount // of neighbours that failed for one reason
	for i := range items {
		it := &items[i]
		if it.result == nil { // a bug, which must not be taken for an acknowledgement
			it.result = &scribev1.FrameResult{Error: rpc.Info(errNoResult)}
		}
		switch info := it.result.GetError(); {
		case info != nil:
			run = run.Plus(it.amount())
			if i == len(items)-1 || items[i+1].result.GetError().GetReason() != info.GetReason() || items[i+1].result.GetError() == nil {
				label := rpc.ReasonLabel(info.GetReason())
				sum.failed[label] = sum.failed[label].Plus(run)
				run = request.Amount{}
			}
		case it.result.GetSampledOut():
			sum.sampledOut = sum.sampledOut.Plus(it.amount())
		default:
			sum.acknowledged = sum.acknowledged.Plus(it.amount())
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.counts.addCounts(&sum)
}
