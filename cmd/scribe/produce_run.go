package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"time"

	"scribe/internal/base/units"
	"scribe/producer"
)

// produceRun is one run of the command. Its counts belong to the goroutine that writes.
type produceRun struct {
	producer *producer.Producer
	category string
	common   producer.Message // what all messages share
	stderr   *statusLine
	start    time.Time

	messages, bytes uint64 // stored
	lost            uint64 // not stored
	unknown         uint64 // may be stored or not
	sampled         uint64 // left out by sampling
}

// writeAll writes chunk after chunk. While one is written, the next one is read.
func (r *produceRun) writeAll(ctx context.Context, src *lineReader) error {
	var msgs []producer.Message
	var failed error
	for {
		c, err := src.takeChunk()
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return errors.Join(failed, src.tooLongError(), err)
		}
		msgs = c.appendMessages(msgs[:0], &r.common)
		goOn, err := r.writeChunk(ctx, c, msgs)
		src.releaseChunk(c)
		failed = errors.Join(failed, err)
		if !goOn {
			// The next chunk would fail for the same reason, and reading it would only lose more.
			if lines, first := src.discardLines(); lines > 0 {
				r.lost += lines
				failed = errors.Join(failed, fmt.Errorf("%s: not sent after that, like everything that follows", first))
			}
			return errors.Join(failed, src.tooLongError())
		}
	}
}

// writeChunk writes one chunk, waits for the outcome of each message and counts it. goOn says that the next chunk may fare better.
func (r *produceRun) writeChunk(ctx context.Context, c *lineChunk, msgs []producer.Message) (goOn bool, err error) {
	batch := r.producer.WriteBatchAsync(ctx, r.category, msgs...)
	_ = r.producer.Flush(ctx) // the last frame does not linger; the context does not end
	_ = batch.Wait(ctx)       // the results have the errors
	var lost, unknown failedLines
	goOn = true
	i := 0
	for result := range batch.Results() {
		err := result.Err()
		switch {
		case errors.Is(err, producer.ErrUnknownOutcome):
			unknown.addLine(i, err)
		case err != nil:
			lost.addLine(i, err)
		case result.Position().Sampled:
			r.sampled++
		default:
			r.messages++
			r.bytes += uint64(len(msgs[i].Payload))
		}
		goOn = goOn && (err == nil || errors.Is(err, producer.ErrTooLarge) && !errors.Is(err, producer.ErrUnknownOutcome))
		i++
	}
	r.lost += lost.count
	r.unknown += unknown.count
	return goOn, errors.Join(lost.describe(c, "messages were not stored"), unknown.describe(c, "are of unknown outcome"))
}

// failedLines are lines of a chunk that share an outcome.
type failedLines struct {
	count uint64
	first int
	err   error // of the first
}

func (f *failedLines) addLine(i int, err error) {
	if f.count == 0 {
		f.first, f.err = i, err
	}
	f.count++
}

// describe returns an error that names the first line and says how many more share its outcome; nil if there is none.
func (f *failedLines) describe(c *lineChunk, outcome string) error {
	if f.count == 0 {
		return nil
	}
	err := f.err
	if errors.Is(err, producer.ErrClosed) { // only limitFlush closes the producer before a message has its outcome
		err = fmt.Errorf("not acknowledged within %v of the signal: %w", flushLimit, err)
	}
	if f.count > 1 {
		return fmt.Errorf("%s: %w (and %d more %s)", c.linePosition(f.first), err, f.count-1, outcome)
	}
	return fmt.Errorf("%s: %w", c.linePosition(f.first), err)
}

// flushLimit bounds how long what was read is still sent after a signal. Those who stop processes by signal commonly wait for 10 seconds
// before they kill.
const flushLimit = 5 * time.Second

// limitFlush closes the producer flushLimit after a signal, which gives every message its outcome. The returned function ends the wait for
// the signal, and waits until nothing is being closed.
func (r *produceRun) limitFlush(signalled context.Context) (stop func()) {
	ended, end := context.WithCancel(context.WithoutCancel(signalled))
	var worker sync.WaitGroup
	worker.Go(func() {
		select {
		case <-signalled.Done():
		case <-ended.Done():
			return
		}
		ctx, cancel := context.WithTimeout(ended, flushLimit)
		defer cancel()
		<-ctx.Done()
		if ended.Err() == nil {
			_ = r.producer.Close(ctx) // the messages have the errors
		}
	})
	return func() {
		end()
		worker.Wait()
	}
}

// exitCode returns the exit code of a run with an error.
func (r *produceRun) exitCode(err error) int {
	switch {
	case r.messages == 0:
		return exitCode(err)
	case r.lost+r.unknown == 0 && errors.Is(err, errInterrupted):
		return exitError
	default:
		return exitPartly
	}
}

// showProgress shows the progress if standard error is a terminal, and nobody types the input. The returned function stops it.
func (r *produceRun) showProgress(stdin io.Reader, files []string) (stop func()) {
	typed := false
	if f, ok := stdin.(*os.File); ok && (len(files) == 0 || slices.Contains(files, "-")) {
		typed = isTerminal(f)
	}
	if !isTerminal(r.stderr.w) || typed {
		return func() {}
	}
	rate := newByteRate()
	return r.stderr.keepShowing(func() string {
		s := r.producer.Stats()
		return fmt.Sprintf("%d messages, %s sent; %d messages, %s acknowledged, %s/s", s.Accepted, units.About(s.AcceptedBytes),
			s.Acked, units.About(s.AckedBytes), units.About(rate.measureRate(s.AckedBytes)))
	})
}

// printSummary prints the last line of standard error.
func (r *produceRun) printSummary(ack producer.AckLevel) {
	seconds := time.Since(r.start).Seconds()
	text := fmt.Sprintf("produced %d messages, %d bytes in %.3f seconds (%s/s, ack %v)", r.messages, r.bytes, seconds, units.About(float64(r.bytes)/seconds), ack)
	if r.lost > 0 {
		text += fmt.Sprintf("; %d messages were not stored", r.lost)
	}
	if r.unknown > 0 {
		text += fmt.Sprintf("; %d of unknown outcome", r.unknown)
	}
	if r.sampled > 0 {
		text += fmt.Sprintf("; %d left out by sampling", r.sampled)
	}
	r.stderr.printLine("%s", text)
}
