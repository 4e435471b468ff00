// Package completeness finds out how complete a category is: from what producers and agents have counted, and from the category itself.
package completeness

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"scribe/consumer"
	"scribe/internal/format/delivery"
)

// Query is what is asked.
type Query struct {
	// Server is the address of the cell, as consumer.New has it.
	Server   string
	Category string
	// Since is the first minute.
	Since time.Time
	// Most is how many messages of the category are read to compare the counts with; none if it is 0, all if it is below 0.
	Most int
	// Options are those of the readers.
	Options []consumer.Option
}

// Answer is how complete a category is.
type Answer struct {
	Lines []delivery.Line
	// Counts is why there are no counts, Log why the category was not compared with them; nil if there are, and if it was.
	Counts, Log error
	// Gaps is how many places are known from which messages, or counts, are missing that were stored.
	Gaps int
}

const (
	// maxRows bounds the rows of a category that are added up, about 200 bytes each.
	maxRows = 5_000_000
	// ahead is how far the clock of a producer may be ahead of the cell's: a message of a minute is stored no earlier before it.
	ahead = 5 * time.Minute
	// behind is how long before the first minute rows are looked at: they say what agents hold, which they repeat as often.
	behind = 10 * time.Minute
)

// Reasons for an answer without one of its sources.
var (
	// ErrNotAsked: no messages were to be read.
	ErrNotAsked = errors.New("it was not asked for")
	// ErrTooMany: there are more than were to be read.
	ErrTooMany = errors.New("there are too many messages")
)

// Read answers a query. It fails only if neither source can be read.
func Read(ctx context.Context, q Query) (Answer, error) {
	a := delivery.NewAccount(q.Category, q.Since)
	var out Answer
	if out.Counts = q.readCounts(ctx, a, &out); ctx.Err() != nil {
		return Answer{}, context.Cause(ctx)
	}
	if q.Most == 0 {
		out.Log = ErrNotAsked
	} else if out.Log = q.readLog(ctx, a, &out); out.Log != nil {
		a.ForgetLog()
	}
	if ctx.Err() != nil {
		return Answer{}, context.Cause(ctx)
	}
	if out.Counts != nil && out.Log != nil {
		return Answer{}, errors.Join(fmt.Errorf("the counts of category %s can't be read: %w", delivery.Category, out.Counts), out.Log)
	}
	out.Lines = a.Lines()
	return out, nil
}

// readCounts adds the rows of the category.
func (q *Query) readCounts(ctx context.Context, a *delivery.Account, out *Answer) error {
	named := fmt.Appendf(nil, `"category":%q`, q.Category) // names need no escapes
	n := 0
	return q.readRecords(ctx, delivery.Category, q.Since.Add(-behind), out, func(r *consumer.Record) error {
		if !bytes.Contains(r.Payload, named) {
			return nil
		}
		row, err := delivery.ParseRow(r.Payload)
		if err != nil {
			return nil //nolint:nilerr // whoever may write everything may write anything
		}
		if n++; n > maxRows {
			return fmt.Errorf("more than %d rows count the category: ask for a shorter time", maxRows)
		}
		a.AddRow(&row, delivery.MinuteOf(r.Time.UnixMicro()), r.Persisted)
		return nil
	})
}

// readLog adds the messages of the category.
func (q *Query) readLog(ctx context.Context, a *delivery.Account, out *Answer) error {
	a.SeeLog()
	n := 0
	return q.readRecords(ctx, q.Category, q.Since.Add(-ahead), out, func(r *consumer.Record) error {
		if n++; q.Most > 0 && n > q.Most {
			return fmt.Errorf("%w: more than %d", ErrTooMany, q.Most)
		}
		a.AddStored(delivery.Place{Producer: r.Origin.Producer, Epoch: r.Origin.Epoch, Shard: r.LogicalShard, Sequence: r.Sequence}, r.Origin.Begun)
		return nil
	})
}

// readRecords reads what a category has since a time. What is missing is counted.
func (q *Query) readRecords(ctx context.Context, category string, since time.Time, out *Answer, take func(*consumer.Record) error) (err error) {
	c, err := consumer.New(q.Server, category, append([]consumer.Option{consumer.WithStart(consumer.At(since)), consumer.WithUntilEnd()}, q.Options...)...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	for r, err := range c.Records(ctx) {
		gap := new(consumer.GapError)
		switch {
		case errors.As(err, &gap):
			if gap.Reason != consumer.GapDropped { // that was never stored
				out.Gaps++
			}
		case err != nil:
			return err
		default:
			if err := take(&r); err != nil {
				return err
			}
		}
	}
	return nil
}
