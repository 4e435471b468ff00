package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	"scribe/cmd/scribe/app"
	"scribe/internal/base/units"
	"scribe/internal/format/record"
	"scribe/producer"
)

type produceFlags struct {
	ack        string
	keyField   string
	key        string
	keyGiven   bool
	delimiter  string
	attributes []string
	wholeFiles bool
	batchBytes units.Bytes
	maxMessage units.Bytes
	shard      uint32
	shardGiven bool
	timeout    units.Duration
	delivery   bool
}

func newProduce() *cobra.Command {
	f := produceFlags{batchBytes: 1 << 20, maxMessage: producer.DefaultMaxMessageBytes, timeout: units.Duration(2 * time.Minute)}
	cmd := &cobra.Command{
		Use:   "produce CATEGORY [FILE...]",
		Short: "Write lines, or whole files, as messages",
		Long: `Write each line of the files, or of standard input, as a message, without its newline. Lines may be empty and may contain any bytes; the
last line needs no newline. The order is kept. A line that is too long is skipped and reported; all others are stored. Files whose names end
with .gz or .zst are decompressed as they are read. With --whole-files each file is one message, byte for byte.

Each message has the attributes of --attribute, and at most one key: --key is that of all messages; --key-field is the name of a field of
JSON lines; with --key-delimiter the key is what stands before the delimiter, and the payload what stands after it (a line without it has
no key).

If nothing listens at the address of the cell, the command says so and ends before it reads any input. After that it rides out outages: a
message that is refused for now, or that no server takes, is sent again until --timeout has passed. Then the command ends with an error
that names the first line of each outcome.

The last line on standard error gives the number of messages and bytes stored, and the seconds it took. If there are any, it also gives

  N messages were not stored    they were refused, or no server took them in time: to write them again is safe
  N of unknown outcome          the answer was lost or did not come in time: to write them again may store them twice
  N left out by sampling        the category is over its quota, and samples

Lines that were not read, because the command ended before, are in none of these numbers. On a terminal, progress is shown.

A signal (SIGINT, SIGTERM) ends the reading. What was read is stored, if that takes at most 5 seconds, and the last line is printed. A
last line of input that has no newline yet is left out. A second signal ends the program at once.

Exit codes: 0 if everything was stored (or left out by sampling), also after a signal, if the input was not a file; 6 if some messages were
stored, and others were not or have an unknown outcome, or their input could not be read. If no message is known to be stored: 5 if
the cell is unavailable, over its quota, or did not answer in time; 3 if the category or the shard does not exist; 4 if access is denied; 2 for
mistakes in the arguments; 1 otherwise. 1 also after a signal before the end of a file, if everything that was read was stored.`,
		Example: `  scribe produce access /var/log/apache2/access.log
  scribe produce access /var/log/apache2/access.log.*.gz --attribute host=web1 --attribute dc=eu
  tail -F app.jsonl | scribe produce app --key-field user_id     (a key for each message; see "scribe category --help" for shards by key)
  printf 'user-17:logged in\nuser-4:left\n' | scribe produce app --key-delimiter :
  scribe produce dumps --whole-files crash-*.json --key host-3
  scribe produce access access.log --ack spooled --server unix:/run/scribe.sock`,
		Args: cobra.MinimumNArgs(1),
	}
	server := serverFlag(cmd)
	fs := cmd.Flags()
	fs.StringVar(&f.ack, "ack", "committed", "what to wait for: none, spooled or committed")
	fs.StringVar(&f.key, "key", "", "key of all messages")
	setVariables(fs, "key") // SCRIBE_KEY is the file of a certificate's key
	fs.StringVar(&f.keyField, "key-field", "", "field of a JSON line that becomes the message's key")
	fs.StringVar(&f.delimiter, "key-delimiter", "", `what stands between the key and the payload of a line; escapes such as \t are understood`)
	fs.StringArrayVar(&f.attributes, "attribute", nil, "attribute of all messages, as NAME=VALUE (may be repeated)")
	fs.BoolVar(&f.wholeFiles, "whole-files", false, "write each file as one message, not each line")
	fs.Var(&f.batchBytes, "batch-bytes", "size of a frame, 4KiB to 64MiB")
	fs.Var(&f.maxMessage, "max-message", "longest line, at most 64MiB; the category has its own limit as well")
	fs.Uint32Var(&f.shard, "shard", 0, "logical shard, where the category leaves it to writers (default: as the category says)")
	fs.Var(&f.timeout, "timeout", "how long to retry a message before it counts as not stored; 0s = no limit")
	fs.BoolVar(&f.delivery, "delivery", true, "tell the cell how many messages were produced and lost, for scribe audit")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		f.shardGiven, f.keyGiven = cmd.Flags().Changed("shard"), cmd.Flags().Changed("key")
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
	if ways := countTrue(f.keyGiven, f.keyField != "", f.delimiter != ""); ways > 1 {
		fault("--key, --key-field and --key-delimiter each say what the key is: give one of them")
	}
	if f.wholeFiles && f.delimiter != "" {
		fault("--key-delimiter is for lines: remove it, or --whole-files")
	}
	return ack, errors.Join(errs...)
}

// countTrue counts the conditions that hold.
func countTrue(conditions ...bool) (n int) {
	for _, c := range conditions {
		if c {
			n++
		}
	}
	return n
}

// commonMessage is what all messages share: shard, key and attributes.
func (f *produceFlags) commonMessage() (producer.Message, error) {
	m := producer.Message{Shard: f.messageShard()}
	if f.keyGiven {
		m.Key = []byte(f.key)
	}
	for _, text := range f.attributes {
		name, value, ok := strings.Cut(text, "=")
		if !ok || name == "" {
			return m, fmt.Errorf("invalid value %q for --attribute: want NAME=VALUE", text)
		}
		m.Attributes = append(m.Attributes, producer.Attribute{Name: name, Value: []byte(value)})
	}
	return m, nil
}

// parseDelimiter returns the delimiter of keys with its escapes resolved.
func (f *produceFlags) parseDelimiter() (string, error) {
	var b []byte
	for rest := f.delimiter; rest != ""; {
		if rest[0] != '\\' {
			b, rest = append(b, rest[0]), rest[1:]
			continue
		}
		c, after, err := parseEscape(rest)
		if err != nil {
			return "", fmt.Errorf("--key-delimiter: %w", err)
		}
		b, rest = append(b, c), after
	}
	return string(b), nil
}

// messageShard returns the shard of messages as the library has it.
func (f *produceFlags) messageShard() uint32 {
	if f.shardGiven && f.shard == 0 {
		return producer.ShardZero
	}
	return f.shard
}

// requestTimeout returns the time limit of one request, which is at most that of a message.
func (f *produceFlags) requestTimeout() time.Duration {
	if f.timeout > 0 {
		return min(producer.DefaultRequestTimeout, f.timeout.Std())
	}
	return producer.DefaultRequestTimeout
}

// Bounds of the producer library.
// countInterval is how often commands tell the cell what they have counted, beside the last time.
const countInterval = 5 * time.Second

const (
	minBatch units.Bytes = 4 << 10
	maxFrame units.Bytes = record.MaxFrameLen
)

func runProduce(cmd *cobra.Command, server, category string, files []string, f *produceFlags) error {
	ack, err := f.checkFlags(category)
	if err != nil {
		return usageError(err)
	}
	delimiter, err := f.parseDelimiter()
	if err != nil {
		return usageError(err)
	}
	common, err := f.commonMessage()
	if err != nil {
		return usageError(err)
	}
	maxLine := int(f.maxMessage)
	stderr := newStatusLine(cmd.ErrOrStderr())
	countEvery := time.Duration(0)
	if f.delivery {
		countEvery = countInterval
	}
	p, err := producer.New(server, producer.WithDeliveryReports(countEvery),
		producer.WithAck(ack), producer.WithBatchBytes(int(f.batchBytes)), producer.WithMaxMessageBytes(maxLine),
		producer.WithDeliveryTimeout(f.timeout.Std()), producer.WithRequestTimeout(f.requestTimeout()),
		producer.WithLogger(newLogger(app.LogConfig{Level: "info"}, stderr)), // the end of an outage is not a warning
		producer.WithMaxBufferedBytes(max(2*producer.DefaultMaxBufferedBytes, int64(maxLine)*2+chunkBytes)), producer.WithMaxInFlight(2*producer.DefaultMaxInFlight))
	if err != nil {
		return usageError(err)
	}
	if err := checkReachable(cmd.Context(), server, "produce to "+category, category); err != nil {
		return errors.Join(err, p.Close(cmd.Context()))
	}
	run := &produceRun{producer: p, category: category, common: common, stderr: stderr, start: time.Now()}
	src := newLineReader(maxLine, f.keyField)
	src.keyDelimiter, src.wholeFiles = delimiter, f.wholeFiles
	stopProgress := run.showProgress(cmd.InOrStdin(), files)
	stopLimit := run.limitFlush(cmd.Context())
	// An interrupt ends the reading; lines that were read are still stored.
	go src.readInputs(cmd.Context(), cmd.InOrStdin(), files)
	err = run.writeAll(context.WithoutCancel(cmd.Context()), src)
	stopLimit()
	_ = p.Close(context.WithoutCancel(cmd.Context())) // every message has its outcome, which is counted
	stopProgress()
	run.lost += src.countTooLong()
	if err != nil {
		code := run.exitCode(err)
		// The error comes before the summary, which is the last line.
		stderr.printLine("scribe: %s", plainText(err))
		err = &codedError{code: code, err: errSaid}
	}
	run.printSummary(ack)
	return err
}

// errSaid ends a command that has already printed its error.
var errSaid = errors.New("")

// checkReachable is an error if nothing answers at the server's address. A producer would go on trying, as in an outage; a command that was
// given a wrong address should say so at once. What the server answers does not matter: an agent takes messages while its cell is away.
func checkReachable(ctx context.Context, server, doing, category string) error {
	_, err := getCategory(ctx, server, doing, category)
	if ce, ok := errors.AsType[*connect.Error](err); ok && ce.Code() == connect.CodeUnavailable && !connect.IsWireError(ce) {
		return err
	}
	return nil
}
