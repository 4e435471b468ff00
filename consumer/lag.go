package consumer

import "time"

// Watermark returns the persisted time that the iteration has reached: with an ordering window, no later message is older than it
// by more than the window. The zero Time means unknown.
func (c *Consumer) Watermark() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.watermark == 0 {
		return time.Time{}
	}
	return time.UnixMicro(c.mu.watermark)
}

// Lag returns how far the watermark lags the clock; 0 when it is unknown. A consumer that has received everything lags by at most
// one heartbeat.
func (c *Consumer) Lag() time.Duration {
	w := c.Watermark()
	if w.IsZero() {
		return 0
	}
	return max(c.cfg.now().Sub(w), 0)
}

// Buffered returns how many messages the stream has announced and the iteration has not yielded. At 0 the next step waits for new
// ones.
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
	// Known reports that an iteration runs and that a server has sent its count; otherwise the other fields are 0.
	Known bool
	// Pointers is the number of pointers to the backlog. The server's part is as of its last message, at most one heartbeat old.
	Pointers uint64
	// Messages and Bytes (of decoded payload) are what these pointers cover. Received pointers are counted exactly. For pointers
	// that are still in the server only the number is known: their messages and bytes are estimated by the average of the
	// received pointers. Exact reports that there are no such pointers. Before the first pointer is received no estimate is
	// possible, and both are 0.
	Messages, Bytes uint64
	Exact           bool
}

// Backlog returns the distance of the running iteration from the end of the category. Together with [Consumer.Lag], which
// measures it in time, these are the numbers to monitor.
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

// countUndelivered counts the queued messages that were not yielded. The payload being delivered is in the queue until it is
// finished. The mutex is held.
func (c *Consumer) countUndelivered(q queueBacklog) (messages, bytes uint64) {
	messages, bytes = uint64(q.messages), uint64(q.bytes)
	if it := c.current; it != nil {
		done := uint64(it.Messages) - uint64(it.Left.Load())
		messages -= min(done, messages)
		bytes -= min(uint64(float64(it.ptr.Length)*float64(done)/float64(max(it.Messages, 1))), bytes)
	}
	return messages, bytes
}
