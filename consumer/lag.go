package consumer

import "time"

// Watermark is the persisted time that the iteration has reached: with an ordering window, no later message is older than this
// by more than the window. The zero Time means that it is not known yet.
func (c *Consumer) Watermark() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.watermark == 0 {
		return time.Time{}
	}
	return time.UnixMicro(c.mu.watermark)
}

// Lag is how far the watermark is behind the clock; 0 when it is not known. A consumer that has everything lags by no more than
// the heartbeat.
func (c *Consumer) Lag() time.Duration {
	w := c.Watermark()
	if w.IsZero() {
		return 0
	}
	return max(c.cfg.now().Sub(w), 0)
}

// Buffered is how many messages were announced by the stream and not yet yielded: 0 means that the next step waits for new ones.
func (c *Consumer) Buffered() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.session == nil {
		return 0
	}
	messages, _ := c.countUndelivered(c.mu.session.queue.readBacklog())
	return int(messages)
}

// Backlog is what exists in the shards that a consumer reads and was not yielded.
type Backlog struct {
	// Known says that there is an iteration, and that a server has told; the other fields are 0 without it.
	Known bool
	// Pointers is how many pointers there are to it; the server's part is as of its last message, a heartbeat old at most.
	Pointers uint64
	// Messages and Bytes (of decoded payload) are behind these pointers. Of those that were received they are counted. Of those that
	// wait in the server only the number is known, and they are estimated by the average of the pointers that were received: Exact
	// says that there are none. Before the first pointer was received there is nothing to estimate by: both are 0 then.
	Messages, Bytes uint64
	Exact           bool
}

// Backlog returns how far the iteration that runs is behind the end of the category: with [Consumer.Lag], which says it in time, the
// two numbers to watch.
func (c *Consumer) Backlog() Backlog {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.session == nil {
		return Backlog{}
	}
	q := c.mu.session.queue.readBacklog()
	if !q.heard {
		return Backlog{}
	}
	b := Backlog{Known: true, Pointers: uint64(q.pointers) + q.behind, Exact: q.behind == 0}
	b.Messages, b.Bytes = c.countUndelivered(q)
	if q.seenPointers > 0 {
		b.Messages += uint64(float64(q.behind) * float64(q.seenMessages) / float64(q.seenPointers))
		b.Bytes += uint64(float64(q.behind) * float64(q.seenBytes) / float64(q.seenPointers))
	}
	return b
}

// countUndelivered is what of the queue was not yielded: the payload that is being delivered is in it until it is done with. The mutex is
// held.
func (c *Consumer) countUndelivered(q queueBacklog) (messages, bytes uint64) {
	messages, bytes = uint64(q.messages), uint64(q.bytes)
	if it := c.current; it != nil {
		done := uint64(it.ptr.Messages) - uint64(it.Left.Load())
		messages -= min(done, messages)
		bytes -= min(uint64(float64(it.ptr.Length)*float64(done)/float64(max(it.ptr.Messages, 1))), bytes)
	}
	return messages, bytes
}
