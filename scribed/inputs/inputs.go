package inputs

import (
	"context"
	"errors"

	"scribe/producer"
)

// Input is a source of messages that runs until its context ends.
type Input interface {
	// Name returns the input's name in the configuration, metrics and logs.
	Name() string
	// Run reads until ctx ends, and returns nil after it has delivered what it could and saved its position. It writes to agent,
	// a producer whose writes return when the agent holds the messages as durably as it can. It calls open once, as soon as its
	// source can reach it. An error means that the input cannot continue, or cannot start if open was not called before; it names
	// the input and its kind.
	Run(ctx context.Context, agent *producer.Producer, open func()) error
}

// refusals are the errors after which sending the same message again would not help.
var refusals = []error{producer.ErrTooLarge, producer.ErrInvalid, producer.ErrUnknownCategory, producer.ErrUnknownShard, producer.ErrRefused}

func isRefusal(err error) bool {
	for _, r := range refusals {
		if errors.Is(err, r) {
			return true
		}
	}
	return false
}

// Refused reports whether the outcome of a write to the agent is final, how many of its messages are lost for good, and their
// bytes. After an outcome that is not final, the input writes the messages again.
func Refused(messages []producer.Message, err error) (lost, size int, final bool) {
	var batch *producer.BatchError
	switch {
	case err == nil:
		return 0, 0, true
	case errors.As(err, &batch):
		for _, m := range batch.Messages {
			if !isRefusal(m.Err) {
				return 0, 0, false
			}
			lost++
			size += len(messages[m.Index].Payload)
		}
		return lost, size, true
	case isRefusal(err):
		return len(messages), PayloadBytes(messages), true
	}
	return 0, 0, false
}

// PayloadBytes sums the payloads of messages.
func PayloadBytes(messages []producer.Message) (n int) {
	for i := range messages {
		n += len(messages[i].Payload)
	}
	return n
}
