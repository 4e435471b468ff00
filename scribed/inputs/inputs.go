package inputs

import (
	"context"
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
	// On an error some may be held and none is promised: the caller delivers them again, or counts them as lost. It waits while
	// the agent has no room, until ctx ends.
	Deliver(ctx context.Context, category string, messages []Message) error
	// Offer takes the messages without waiting and returns how many of them, from the front, were taken. What is not taken is the
	// caller's loss to count.
	Offer(category string, messages []Message) (taken int)
}

// Input is a source of messages that runs until its context ends.
type Input interface {
	// Name is the input's in the configuration, metrics and logs.
	Name() string
	// Run reads until ctx ends, and returns then with nil after it has delivered what it could and saved its position. An error
	// means that the input can't go on.
	Run(ctx context.Context, sink Sink) error
}
