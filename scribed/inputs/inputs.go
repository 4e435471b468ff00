package inputs

import (
	"context"
	"errors"
	"time"
)

// Message is one message that an input has read. Its bytes are used only until the call that takes it returns.
type Message struct {
	Payload []byte
	// Key is absent when nil.
	Key []byte
	// Time is the event time; zero = now.
	Time time.Time
	// Attributes, each name at most once.
	Attributes []Attribute
}

// Attribute is a named value of a message.
type Attribute struct {
	Name  string
	Value []byte
}

// Sink takes what inputs read. It is the agent, behind a producer of its own.
type Sink interface {
	// Deliver returns when the agent holds the messages as durably as it can: on its disk when it has a spool, else in the cell.
	// On an error some may be held and none is promised: the caller delivers them again. But those of an error that wraps
	// [ErrRefused] are lost for good, and then all others are held: see [Refused]. It waits while the agent has no room, until ctx
	// ends.
	Deliver(ctx context.Context, category string, messages []Message) error
	// Offer takes the messages without waiting and returns how many of them, from the front, were taken. What is not taken is the
	// caller's loss to count.
	Offer(category string, messages []Message) (taken int)
}

// ErrRefused is what a [Sink]'s error wraps when messages will never be taken: an input counts them as dropped and goes on. After
// any other error it tries again.
var ErrRefused = errors.New("refused for good")

// RefusedError says which messages of a delivery will never be taken; the others are held. It matches [ErrRefused].
type RefusedError struct {
	// Messages are the refused ones, by index, ascending.
	Messages []int
	// Err is why.
	Err error
}

// Error implements error.
func (e *RefusedError) Error() string { return ErrRefused.Error() + ": " + e.Err.Error() }

// Unwrap implements errors.Is and As.
func (e *RefusedError) Unwrap() []error { return []error{ErrRefused, e.Err} }

// Refused reports whether the outcome of a delivery is final, and how many of its messages are lost, with how many bytes: none
// without an error, those of a [RefusedError], all when another error wraps [ErrRefused].
func Refused(messages []Message, err error) (lost, size int, final bool) {
	if some := new(RefusedError); errors.As(err, &some) {
		for _, i := range some.Messages {
			if i >= 0 && i < len(messages) {
				lost++
				size += len(messages[i].Payload)
			}
		}
		return lost, size, true
	}
	if err == nil || !errors.Is(err, ErrRefused) {
		return 0, 0, err == nil
	}
	for i := range messages {
		size += len(messages[i].Payload)
	}
	return len(messages), size, true
}

// Input is a source of messages that runs until its context ends.
type Input interface {
	// Name is the input's in the configuration, metrics and logs.
	Name() string
	// Run reads until ctx ends, and returns then with nil after it has delivered what it could and saved its position. It calls open
	// once, as soon as its source can reach it. An error means that the input can't go on, and names its kind and itself; without a
	// call of open before it, that it could not begin.
	Run(ctx context.Context, sink Sink, open func()) error
}
