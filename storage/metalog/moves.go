package metalog

import (
	"fmt"
	"time"

	"scribe/internal/format/record"
)

// Limits of moves between engines.
const (
	// MaxEngineName is the longest name of an engine in bytes.
	MaxEngineName = 63
	// MaxMovedProducers is the largest number of producers that a shard may know when it moves: they travel in one transaction.
	MaxMovedProducers = 200_000
	// MaxStays is the largest number of earlier stays of a shard that an engine keeps until they are trimmed.
	MaxStays = 16
	// MaxClockJump bounds how far a call puts an engine's clock forward.
	MaxClockJump = time.Hour
)

// Handover is what an engine hands over of a shard. The engine keeps it until the shard comes back, so that any process can finish a move that
// another one began. Everything below NextLSN stays where it is.
type Handover struct {
	Shard record.ShardID
	// From and To are the names of the engines.
	From, To string
	// NextLSN is the LSN of the first record that To stores. It is not below record.FirstLSN.
	NextLSN record.LSN
	// Epoch is above all epochs that From gave out. The shard is adopted with it, and nobody writes with it.
	Epoch uint64
	// LastTime is the persisted time of the newest record ever appended; 0 if no record was appended.
	LastTime int64
	// Time is the time of the handover by the clock of From, at least LastTime. From promises no watermark of the shard above it, ever.
	Time int64
	// Sealed says that the shard was sealed before.
	Sealed bool
	// Producers is the number of producers that the shard knows.
	Producers int
}

// MovedProducer is the state of a producer as it moves with its shard. Next is not 0.
type MovedProducer struct {
	ProducerState
	// LSN and Time are those of the newest record with messages of the producer.
	LSN  record.LSN
	Time int64
}

// Stay is a run of LSNs of a shard that one engine stores or stored: from the shard's creation or adoption there to its tail or its handover.
type Stay struct {
	// Begin is the LSN with which the stay began, FirstLSN that of its oldest record, NextLSN that of the next one, or of the first one that
	// MovedTo stores. FirstLSN is NextLSN if no records are left.
	Begin, FirstLSN, NextLSN record.LSN
	// Epoch is the newest epoch, Adopted the one with which the shard was adopted; Adopted is 0 if it was created here.
	Epoch, Adopted uint64
	// LastTime is the persisted time of the newest record ever appended before NextLSN, in any engine; 0 if there was none.
	LastTime int64
	// MovedFrom is the engine that handed the shard over, MovedTo the one that it was handed over to. They are empty if it was created here, and
	// while it is here.
	MovedFrom, MovedTo string
	// Left is the Time of the handover to MovedTo.
	Left int64
}

// Forward says where the shards of a category are created, as an engine knows it.
type Forward struct {
	// To is the engine that creates shards of the category; empty if this one does.
	To string
	// Version orders the marks of a category: of two, the higher one counts. It is 0 if there never was a mark.
	Version uint64
	// Time is, in a call, a time that the engine's clock has passed when the call returns; in an answer, when the engine stored the mark, by its
	// clock.
	Time int64
}

// ValidateMoveOut checks the arguments of [Log.MoveOut].
func ValidateMoveOut(shard record.ShardID, from, to string) error {
	if err := ValidateEngineName(from); err != nil {
		return fmt.Errorf("shard %v moves out: %w", shard, err)
	}
	if err := ValidateEngineName(to); err != nil {
		return fmt.Errorf("shard %v moves out: %w", shard, err)
	}
	if from == to {
		return fmt.Errorf("%w: shard %v can't move from engine %q to the same one", ErrInvalid, shard, from)
	}
	return nil
}

// ValidateMoveIn checks the arguments of [Log.MoveIn].
func ValidateMoveIn(h Handover, producers []MovedProducer) error {
	if err := ValidateMoveOut(h.Shard, h.From, h.To); err != nil {
		return err
	}
	if err := ValidatePosition(h.Shard, h.NextLSN); err != nil {
		return err
	}
	if h.Epoch == 0 || h.LastTime < 0 || h.Time < h.LastTime || h.Time == 0 {
		return fmt.Errorf("%w: shard %v: a handover that can't be: epoch %d, last time %d, time %d", ErrInvalid, h.Shard, h.Epoch, h.LastTime, h.Time)
	}
	if len(producers) != h.Producers || len(producers) > MaxMovedProducers {
		return fmt.Errorf("%w: shard %v: a handover of %d producers came with %d, the limit is %d", ErrInvalid, h.Shard, h.Producers, len(producers), MaxMovedProducers)
	}
	for i, p := range producers {
		switch {
		case i > 0 && producers[i-1].Producer >= p.Producer:
			return fmt.Errorf("%w: shard %v: producer %d came after %d: want them in order, each once", ErrInvalid, h.Shard, p.Producer, producers[i-1].Producer)
		case !p.Known(), p.LSN < record.FirstLSN, p.LSN >= h.NextLSN:
			return fmt.Errorf("%w: shard %v: producer %d can't be: next sequence %d, LSN %d", ErrInvalid, h.Shard, p.Producer, p.Next, p.LSN)
		}
	}
	return nil
}

// ValidateForward checks the arguments of [Log.ForwardCategory].
func ValidateForward(f Forward) error {
	if f.Version == 0 {
		if f != (Forward{}) {
			return fmt.Errorf("%w: a mark of a category without a version", ErrInvalid)
		}
		return nil
	}
	if f.Time < 0 {
		return fmt.Errorf("%w: invalid time %d of a mark of a category: want 0 or more", ErrInvalid, f.Time)
	}
	if f.To == "" {
		return nil
	}
	return ValidateEngineName(f.To)
}

// ProducersLimit returns the limit that [Log.MovedProducers] applies.
func ProducersLimit(limit int) int {
	if limit <= 0 || limit > MaxProducers {
		return MaxProducers
	}
	return limit
}

// ValidateEngineName checks the name of an engine: it is a part of keys and paths.
func ValidateEngineName(name string) error {
	if name == "" || len(name) > MaxEngineName {
		return fmt.Errorf("%w: the name of an engine has %d bytes, want 1 to %d", ErrInvalid, len(name), MaxEngineName)
	}
	for i := range len(name) {
		if c := name[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') && (c != '-' || i == 0) {
			return fmt.Errorf("%w: invalid name %q of an engine: want a-z, 0-9 and, not at first, -", ErrInvalid, name)
		}
	}
	return nil
}
