package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"scribe/consumer"
	"scribe/internal/atomicfile"
	"scribe/internal/rpc"
	"scribe/internal/units"
	scribev1 "scribe/proto/scribe/v1"
)

type tailFlags struct {
	from       string
	untilEnd   bool
	count      uint64
	window     units.Duration
	checkpoint string
	output     string
	shards     []uint
}

func newTail() *cobra.Command {
	var f tailFlags
	cmd := &cobra.Command{
		Use:   "tail CATEGORY",
		Short: "Read messages, from any point on",
		Long: `Read the messages of a category and follow it. With -o raw each message's payload is printed with a newline behind it; with
-o jsonl an object a line: time, persisted, key, payload (payload_base64 when it is not UTF-8), attributes, shard, lsn, index.

--checkpoint FILE resumes from FILE if it exists, keeps it current about once a second, and writes it a last time at the end: when
the command is run again it goes on with the message after the last one that was printed. When the reader of a pipe goes away in the
middle of a write, the messages of that write come again.`,
		Example: `  scribe tail access
  scribe tail access --from earliest --until-end -o raw > access.log
  scribe tail access --from 2026-11-21T09:00:00Z -n 10 -o jsonl
  scribe tail access --from earliest --checkpoint access.checkpoint`,
		Args: cobra.ExactArgs(1),
	}
	server := serverFlag(cmd)
	fs := cmd.Flags()
	fs.StringVar(&f.from, "from", "latest", "earliest, latest, a time (RFC 3339) or a checkpoint's text")
	fs.BoolVar(&f.untilEnd, "until-end", false, "stop at the end as it is when the command begins")
	fs.Uint64VarP(&f.count, "count", "n", 0, "stop after so many messages (default: no limit)")
	fs.Var(&f.window, "window", "messages are at most this far out of order of persisted time (default: the category's, else unbounded)")
	fs.StringVar(&f.checkpoint, "checkpoint", "", "file to resume from and to keep current")
	fs.StringVarP(&f.output, "output", "o", "raw", "raw or jsonl")
	fs.UintSliceVar(&f.shards, "shard", nil, "logical shards to read (default: all)")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return tail(cmd, *server, args[0], &f)
	}
	return cmd
}

func tail(cmd *cobra.Command, server, category string, f *tailFlags) error {
	write, err := recordWriter(f.output)
	if err != nil {
		return usage(err)
	}
	start, err := f.start()
	if err != nil {
		return err
	}
	// A consumer waits for a server that is away. A command that was given the wrong address or name should say so at once.
	if err := describeOnce(cmd.Context(), server, category); err != nil {
		return err
	}
	opts := []consumer.Option{
		consumer.WithStart(start),
		consumer.WithLogger(slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: slog.LevelWarn}))),
	}
	if f.untilEnd {
		opts = append(opts, consumer.WithUntilEnd())
	}
	if cmd.Flags().Changed("window") {
		opts = append(opts, consumer.WithWindow(f.window.Std()))
	}
	if len(f.shards) > 0 {
		shards := make([]uint32, len(f.shards))
		for i, s := range f.shards {
			shards[i] = uint32(min(s, 1<<32-1))
		}
		opts = append(opts, consumer.WithLogicalShards(shards...))
	}
	c, err := consumer.New(server, category, opts...)
	if err != nil {
		return usage(err)
	}
	defer func() { _ = c.Close() }()
	t := &tailing{consumer: c, out: bufio.NewWriterSize(cmd.OutOrStdout(), 1<<16), stderr: cmd.ErrOrStderr(), write: write, file: f.checkpoint, limit: f.count}
	ctx, stop := untilUnread(cmd.Context(), cmd.OutOrStdout())
	defer stop()
	return t.run(ctx)
}

// untilUnread returns a context that also ends when nobody reads out any more: "scribe tail access | head -3" should end with head,
// not with the first message after it.
func untilUnread(ctx context.Context, out io.Writer) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	f, ok := out.(*os.File)
	if !ok {
		return ctx, cancel
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(unreadEvery)
		defer tick.Stop()
		for !unread(f) {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
		}
		cancel()
	}()
	return ctx, func() {
		cancel()
		<-done
	}
}

// unreadEvery is how often a follower looks whether its reader is there still.
const unreadEvery = 200 * time.Millisecond

func describeOnce(ctx context.Context, server, category string) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if _, err := rpc.NewControlClient(rpc.Default(), server).GetCategory(ctx, &scribev1.GetCategoryRequest{Name: category}); err != nil {
		return called(server, "tail "+category, err)
	}
	return nil
}

// start is where to begin: the checkpoint file wins over --from, since resuming is what it is for.
func (f *tailFlags) start() (consumer.Start, error) {
	if f.checkpoint != "" {
		text, err := os.ReadFile(f.checkpoint)
		switch {
		case err == nil:
			start, err := consumer.Checkpoint(strings.TrimSpace(string(text)))
			if err != nil {
				return start, fmt.Errorf("checkpoint file %s: %w; remove the file to begin at --from", f.checkpoint, err)
			}
			return start, nil
		case !errors.Is(err, fs.ErrNotExist):
			return consumer.Start{}, fmt.Errorf("checkpoint file: %w", err)
		}
	}
	switch f.from {
	case "earliest":
		return consumer.Earliest(), nil
	case "latest":
		return consumer.Latest(), nil
	}
	if at, err := time.Parse(time.RFC3339, f.from); err == nil {
		return consumer.At(at), nil
	}
	start, err := consumer.Checkpoint(f.from)
	if err != nil {
		return start, usage(fmt.Errorf("--from %q is none of earliest, latest, a time as 2026-11-21T09:00:00Z, or a checkpoint: %w", f.from, err))
	}
	return start, nil
}

// tailing is one run of the command.
type tailing struct {
	consumer *consumer.Consumer
	out      *bufio.Writer
	stderr   io.Writer
	write    func(io.Writer, *consumer.Record) error
	file     string // of the checkpoint; may be empty
	limit    uint64 // 0 = none

	saved time.Time
	// printed is the checkpoint of what has left for standard output.
	printed string
}

// saveEvery is how often the checkpoint file is brought up to date.
const saveEvery = time.Second

func (t *tailing) run(ctx context.Context) error {
	err := t.records(ctx)
	// What is in the buffer belongs to the messages before the checkpoint: it goes out first.
	if ferr := t.flush(); err == nil {
		err = ferr
	}
	if errors.Is(err, syscall.EPIPE) || ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		err = nil // the reader has seen enough, or the user has
	}
	return errors.Join(err, t.save())
}

func (t *tailing) records(ctx context.Context) error {
	n := uint64(0)
	for rec, err := range t.consumer.Records(ctx) {
		if err != nil {
			gap := new(consumer.GapError)
			if !errors.As(err, &gap) {
				return err
			}
			fmt.Fprintln(t.stderr, "scribe: "+err.Error())
			continue
		}
		if err := t.write(t.out, &rec); err != nil {
			return err
		}
		n++
		if n == t.limit {
			return nil
		}
		// Nothing more is there for now: the reader should see what is, and the checkpoint say so.
		if t.consumer.Buffered() == 0 || time.Since(t.saved) > saveEvery {
			if err := t.flush(); err != nil {
				return err
			}
			if time.Since(t.saved) > saveEvery {
				if err := t.save(); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// flush hands over what was printed; only then do its messages count as delivered.
func (t *tailing) flush() error {
	if err := t.out.Flush(); err != nil {
		return err
	}
	if t.file != "" {
		t.printed = t.consumer.Checkpoint()
	}
	return nil
}

// save replaces the checkpoint file: written, synced and renamed, so that it is whole at every moment.
func (t *tailing) save() error {
	t.saved = time.Now()
	if t.file == "" || t.printed == "" {
		return nil
	}
	if err := atomicfile.WriteBytes(t.file, []byte(t.printed+"\n")); err != nil {
		return fmt.Errorf("checkpoint file: %w", err)
	}
	return nil
}

// recordWriter returns what prints a message in a format.
func recordWriter(format string) (func(io.Writer, *consumer.Record) error, error) {
	switch format {
	case "raw":
		return writeRaw, nil
	case "jsonl":
		return writeJSON, nil
	default:
		return nil, fmt.Errorf("-o %q is none of raw, jsonl", format)
	}
}

func writeRaw(w io.Writer, rec *consumer.Record) error {
	if _, err := w.Write(rec.Payload); err != nil {
		return err
	}
	_, err := w.Write([]byte{'\n'})
	return err
}

// recordLine is a message as JSON. Bytes that are not UTF-8 can't be a JSON string: they come as base64 under another name.
type recordLine struct {
	Time          time.Time         `json:"time"`
	Persisted     time.Time         `json:"persisted"`
	Key           *string           `json:"key,omitempty"`
	KeyBase64     []byte            `json:"key_base64,omitempty"`
	Payload       *string           `json:"payload,omitempty"`
	PayloadBase64 []byte            `json:"payload_base64,omitempty"`
	Attributes    map[string][]byte `json:"attributes,omitempty"`
	Shard         string            `json:"shard"`
	LSN           uint64            `json:"lsn"`
	Index         int               `json:"index"`
}

func writeJSON(w io.Writer, rec *consumer.Record) error {
	line := recordLine{Time: rec.Time.UTC(), Persisted: rec.Persisted.UTC(), Shard: rec.Shard.String(), LSN: uint64(rec.LSN), Index: rec.Index}
	line.Payload, line.PayloadBase64 = textOrBytes(rec.Payload)
	if rec.Key != nil {
		line.Key, line.KeyBase64 = textOrBytes(rec.Key)
	}
	for name, value := range rec.Attributes.All() {
		if line.Attributes == nil {
			line.Attributes = map[string][]byte{}
		}
		line.Attributes[string(name)] = value
	}
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	return enc.Encode(line)
}

func textOrBytes(b []byte) (*string, []byte) {
	if utf8.Valid(b) {
		return new(string(b)), nil
	}
	return nil, b
}
