package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"scribe/cmd/scribe/app"
	"scribe/internal/base/units"
	"scribe/internal/format/record"
	"scribe/producer"
)

type produceFlags struct {
	ack        string
	keyField   string
	batchBytes units.Bytes
	maxMessage units.Bytes
	shard      uint32
	timeout    units.Duration
}

func newProduce() *cobra.Command {
	f := produceFlags{batchBytes: 1 << 20, maxMessage: producer.DefaultMaxMessageBytes, timeout: units.Duration(2 * time.Minute)}
	cmd := &cobra.Command{
		Use:   "produce CATEGORY [FILE...]",
		Short: "Write lines as messages",
		Long: `Write each line of the files, or of standard input, as a message, without its newline. Lines may be empty and may contain any bytes; the
last line needs no newline. The order is kept. A line that is too long is skipped and reported; all others are stored.

The last line on standard error gives the number of messages and bytes stored, and the seconds it took. The exit code is 6 if some
messages were stored and others were not.`,
		Example: `  scribe produce access /var/log/apache2/access.log
  tail -F app.jsonl | scribe produce app --key-field user_id
  scribe produce access access.log --ack spooled --server unix:/run/scribe.sock`,
		Args: cobra.MinimumNArgs(1),
	}
	server := serverFlag(cmd)
	fs := cmd.Flags()
	fs.StringVar(&f.ack, "ack", "committed", "what to wait for: none, spooled or committed")
	fs.StringVar(&f.keyField, "key-field", "", "field of a JSON line that becomes the message's key")
	fs.Var(&f.batchBytes, "batch-bytes", "size of a frame, 4KiB to 64MiB")
	fs.Var(&f.maxMessage, "max-message", "longest line, at most 64MiB; the category has its own limit as well")
	fs.Uint32Var(&f.shard, "shard", 0, "logical shard")
	fs.Var(&f.timeout, "timeout", "how long to retry a message; 0s = no limit")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return runProduce(cmd, *server, args[0], args[1:], &f)
	}
	return cmd
}

// checkFlags reports all invalid flags at once, before any input is read.
func (f *produceFlags) checkFlags(category string) (producer.AckLevel, error) {
	errs := []error{record.ValidateCategory(category)}
	fault := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	ack, err := producer.ParseAckLevel(f.ack)
	if err != nil {
		fault("invalid value %q for --ack: want none, spooled or committed", f.ack)
	}
	if f.batchBytes < minBatch || f.batchBytes > maxFrame {
		fault("invalid value %v for --batch-bytes: want %v to %v", f.batchBytes, minBatch, maxFrame)
	}
	if f.maxMessage < 1 || f.maxMessage > maxFrame {
		fault("invalid value %v for --max-message: want 1B to %v", f.maxMessage, maxFrame)
	}
	if f.shard > record.MaxLogicalShard {
		fault("invalid value %d for --shard: want 0 to %d", f.shard, record.MaxLogicalShard)
	}
	return ack, errors.Join(errs...)
}

// requestTimeout returns the time limit of one request, which is at most that of a message.
func (f *produceFlags) requestTimeout() time.Duration {
	if f.timeout > 0 {
		return min(producer.DefaultRequestTimeout, f.timeout.Std())
	}
	return producer.DefaultRequestTimeout
}

// Bounds of the producer library.
const (
	minBatch units.Bytes = 4 << 10
	maxFrame units.Bytes = record.MaxFrameLen
)

func runProduce(cmd *cobra.Command, server, category string, files []string, f *produceFlags) error {
	ack, err := f.checkFlags(category)
	if err != nil {
		return usageError(err)
	}
	maxLine := int(f.maxMessage)
	p, err := producer.New(server,
		producer.WithAck(ack), producer.WithBatchBytes(int(f.batchBytes)), producer.WithMaxMessageBytes(maxLine),
		producer.WithDeliveryTimeout(f.timeout.Std()), producer.WithRequestTimeout(f.requestTimeout()), producer.WithLogger(newLogger(app.LogConfig{Level: "warn"}, cmd.ErrOrStderr())),
		producer.WithMaxBufferedBytes(max(producer.DefaultMaxBufferedBytes, int64(maxLine)*2+chunkBytes)))
	if err != nil {
		return usageError(err)
	}
	run := &produceRun{producer: p, category: category, shard: f.shard, stderr: cmd.ErrOrStderr(), start: time.Now()}
	src := newLineReader(maxLine, f.keyField)
	// An interrupt ends the reading; lines that were read are still stored.
	go src.readInputs(cmd.Context(), cmd.InOrStdin(), files)
	err = run.writeAll(context.WithoutCancel(cmd.Context()), src)
	closeCtx, cancel := context.WithTimeout(context.WithoutCancel(cmd.Context()), f.timeout.Std())
	defer cancel()
	if cerr := p.Close(closeCtx); cerr != nil {
		unsent := new(producer.UnsentError)
		if errors.As(cerr, &unsent) {
			run.messages -= min(run.messages, unsent.Messages)
		}
		err = errors.Join(err, cerr)
	}
	if err != nil {
		code := exitCode(err)
		if run.messages > 0 {
			code = exitPartly
		}
		// The error comes before the summary, which is the last line.
		fmt.Fprintln(cmd.ErrOrStderr(), "scribe: "+plainText(err))
		err = &codedError{code: code, err: errSaid}
	}
	run.lost += src.countTooLong()
	run.printSummary(ack)
	return err
}

// errSaid ends a command that has already printed its error.
var errSaid = errors.New("")

// produceRun is one run of the command.
type produceRun struct {
	producer *producer.Producer
	category string
	shard    uint32
	stderr   io.Writer
	start    time.Time

	messages, bytes uint64 // stored
	lost            uint64 // not stored
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
		msgs = c.appendMessages(msgs[:0], r.shard)
		failed = errors.Join(failed, r.writeChunk(ctx, c, msgs))
		src.releaseChunk(c)
		if failed != nil && !errors.Is(failed, producer.ErrTooLarge) {
			// The next chunk would fail for the same reason, and reading it would only lose more.
			src.stopReading()
			return errors.Join(failed, src.tooLongError())
		}
	}
}

// writeChunk stores one chunk and updates the counts.
func (r *produceRun) writeChunk(ctx context.Context, c *lineChunk, msgs []producer.Message) error {
	err := r.producer.Write(ctx, r.category, msgs...)
	lost, stored := 0, uint64(len(c.buf))
	batch := new(producer.BatchError)
	switch {
	case err == nil:
	case errors.As(err, &batch):
		lost = len(batch.Messages)
		first := batch.Messages[0]
		err = fmt.Errorf("%s: %w", c.linePosition(first.Index), first.Err)
		if lost > 1 {
			err = fmt.Errorf("%w (and %d more messages)", err, lost-1)
		}
		for _, m := range batch.Messages {
			stored -= uint64(len(msgs[m.Index].Payload))
		}
	default:
		lost = len(msgs)
		err = fmt.Errorf("%s: %w", c.linePosition(0), err)
		stored = 0
	}
	r.messages += uint64(len(msgs) - lost) //nolint:gosec // not negative: a batch names each message once
	r.bytes += stored
	r.lost += uint64(lost) //nolint:gosec // not negative
	return err
}

// printSummary prints the last line of standard error.
func (r *produceRun) printSummary(ack producer.AckLevel) {
	seconds := time.Since(r.start).Seconds()
	fmt.Fprintf(r.stderr, "produced %d messages, %d bytes in %.3f seconds (%s/s, ack %v)", r.messages, r.bytes, seconds, units.About(float64(r.bytes)/seconds), ack)
	if r.lost > 0 {
		fmt.Fprintf(r.stderr, "; %d messages were not stored", r.lost)
	}
	fmt.Fprintln(r.stderr)
}

// openInput opens a file; "-" is standard input.
func openInput(stdin io.Reader, name string) (io.Reader, func() error, error) {
	if name == "-" {
		return stdin, func() error { return nil }, nil
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, nil, err
	}
	return f, f.Close, nil
}
