package inputs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"scribe/internal/base/config"
	"scribe/internal/format/record"
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

// Deps are the dependencies of an input.
type Deps struct {
	// Host is this host's name, for messages that come without one.
	Host string
	// StateDir is the folder of saved positions. It is created if needed.
	StateDir string
	// Logger receives the log; nil discards it.
	Logger *slog.Logger
	// Registerer receives the metrics; nil = none. The input unregisters them at its end.
	Registerer prometheus.Registerer
	// Clock defaults to time.Now.
	Clock func() time.Time
}

// WithDefaults returns the dependencies with their defaults, and with the input's name in the log.
func (d Deps) WithDefaults(name string) Deps {
	if d.Logger == nil {
		d.Logger = slog.New(slog.DiscardHandler)
	}
	d.Logger = d.Logger.With("input", name)
	if d.Clock == nil {
		d.Clock = time.Now
	}
	return d
}

// CheckConfig checks the tags of an input's configuration, and its name.
func CheckConfig(kind, name string, c any) *config.Violations {
	v := config.Check(kind+" "+name, c, config.Bounds{
		"MaxMessageSize": record.DefaultMaxMessageSize, "MaxAttributesOfAll": record.MaxAttributes,
	})
	if record.ValidateCategory(name) != nil {
		v.Add("Name", "invalid value %q: want letters, digits, '.', '_' and '-'", name)
	}
	return v
}

// NameError adds the kind and name of an input to its error. It is deferred.
func NameError(err *error, kind, name string) {
	if *err != nil {
		*err = fmt.Errorf("%s %s: %w", kind, name, *err)
	}
}

// refusals are the errors after which sending the same message again would not help.
var refusals = []error{producer.ErrTooLarge, producer.ErrInvalid, producer.ErrUnknownCategory, producer.ErrUnknownShard, producer.ErrRefused}

func isRefusal(err error) bool {
	return slices.ContainsFunc(refusals, func(refusal error) bool { return errors.Is(err, refusal) })
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
