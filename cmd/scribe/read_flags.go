package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"scribe/cmd/scribe/app"
	"scribe/consumer"
	"scribe/internal/base/units"
	"scribe/internal/format/checkpoint"
	"scribe/internal/format/record"
)

// readFlags are the flags of commands that read a category.
type readFlags struct {
	from       string
	count      uint64
	limited    bool // by count
	window     tailWindow
	checkpoint string
	shards     shardList
	failOnGap  bool
	readProxy  string
}

// addFlags adds the flags. The command begins at from, and prints messages or rows.
func (f *readFlags) addFlags(fs *pflag.FlagSet, from, printed, ofCount string) {
	fs.StringVar(&f.from, "from", from, "earliest, latest, "+units.TimeHelp+" or the text of a checkpoint")
	fs.Uint64VarP(&f.count, "count", "n", 0, "stop after this many "+printed+ofCount+" (default: no limit)")
	fs.Var(&f.window, "window", "ordering window, by which "+printed+" may be out of order of persisted time: 0 (strict order), a duration or unbounded (default: the category's, else unbounded)")
	fs.StringVar(&f.checkpoint, "checkpoint", "", "file to resume from and to update")
	fs.Var(&f.shards, "shards", "logical shards to read, for example 0,4-7 (default: all)")
	fs.BoolVar(&f.failOnGap, "fail-on-gap", false, "stop with an error before missing messages")
	fs.Var((*addressFlag)(&f.readProxy), "read-proxy", "address of the cell whose read proxies fetch the payloads of another region's category (default: --server)")
}

// readOptions are the consumer's options that follow from the flags alone.
func (f *readFlags) readOptions(name string, stderr io.Writer) []consumer.Option {
	opts := []consumer.Option{consumer.WithName(name), consumer.WithLogger(newLogger(app.LogConfig{Level: "warn"}, stderr))}
	if f.window.given {
		opts = append(opts, consumer.WithWindow(f.window.length))
	}
	if f.readProxy != "" {
		opts = append(opts, consumer.WithReadProxy(f.readProxy))
	}
	if len(f.shards) > 0 {
		opts = append(opts, consumer.WithLogicalShards(f.shards...))
	}
	return opts
}

// openStart returns where to begin, and the checkpoint file, which is nil without --checkpoint.
func (f *readFlags) openStart(category string) (start consumer.Start, file *checkpointFile, err error) {
	if start, err = startOf(f.from); err != nil || f.checkpoint == "" {
		return start, nil, err
	}
	if file, err = openCheckpointFile(f.checkpoint); err != nil {
		return start, nil, err
	}
	saved, ok, err := file.loadStart(category)
	switch {
	case err != nil:
		return start, nil, errors.Join(err, file.Close())
	case ok:
		start = saved
	}
	return start, file, nil
}

// requireCategory returns an error if the category does not exist, or is not that of the checkpoint file. A consumer would wait for a server
// that is away; a command that was given the wrong address or name should say so at once.
func requireCategory(ctx context.Context, server, doing, category string, file *checkpointFile) error {
	found, err := getCategory(ctx, server, doing, category)
	if err == nil && file != nil && file.category != 0 && file.category != found.GetId() {
		err = file.unusableError(fmt.Errorf("the category %q was deleted and created again since", category))
	}
	return err
}

// startOf is where --from says to begin.
func startOf(from string) (consumer.Start, error) {
	switch from {
	case "earliest":
		return consumer.Earliest(), nil
	case "latest":
		return consumer.Latest(), nil
	}
	if at, err := units.ParseTime(from, time.Now()); err == nil {
		return consumer.At(at), nil
	}
	if err := checkStart(from); err != nil {
		return consumer.Start{}, usageError(fmt.Errorf("--from: %w", err))
	}
	start, err := consumer.Checkpoint(from)
	if err != nil {
		return start, usageError(fmt.Errorf("--from: %w", err))
	}
	return start, nil
}

// checkStart tells what is no checkpoint at all from one that is damaged.
func checkStart(text string) error {
	if _, err := checkpoint.Parse(text); err != nil && !strings.HasPrefix(text, "scribe") {
		return fmt.Errorf("invalid value %q: want earliest, latest, %s or a checkpoint", excerptOf(text), units.TimeHelp)
	}
	return nil
}

// tailWindow is a flag for the ordering window of a reader.
type tailWindow struct {
	given  bool
	length time.Duration
}

// windowUnbounded is the window that is none.
const windowUnbounded = "unbounded"

// String implements pflag.Value.
func (w *tailWindow) String() string {
	switch {
	case !w.given:
		return ""
	case w.length == consumer.Unbounded:
		return windowUnbounded
	}
	return units.Duration(w.length).String()
}

// Set implements pflag.Value.
func (w *tailWindow) Set(s string) error {
	if s == windowUnbounded || s == "none" { // as categories have it
		*w = tailWindow{given: true, length: consumer.Unbounded}
		return nil
	}
	d, err := units.ParseDuration(s)
	if err != nil {
		return fmt.Errorf("invalid window %q: want 0 (strict order), a duration with its unit such as 250ms, 1m or 1d, or %s", s, windowUnbounded)
	}
	*w = tailWindow{given: true, length: d.Std()}
	return nil
}

// Type implements pflag.Value.
func (w *tailWindow) Type() string { return "window" }

// shardList is a flag for logical shards, sorted and each once.
type shardList []uint32

// String implements pflag.Value.
func (l *shardList) String() string {
	var parts []string
	for i := 0; i < len(*l); {
		first := (*l)[i]
		last := first
		for i++; i < len(*l) && (*l)[i] == last+1; i++ {
			last++
		}
		if part := strconv.FormatUint(uint64(first), 10); last == first {
			parts = append(parts, part)
		} else {
			parts = append(parts, part+"-"+strconv.FormatUint(uint64(last), 10))
		}
	}
	return strings.Join(parts, ",")
}

// Set implements pflag.Value. Given more than once the flag adds up.
func (l *shardList) Set(s string) error {
	for part := range strings.SplitSeq(s, ",") {
		from, to, ranged := strings.Cut(strings.TrimSpace(part), "-")
		first, err := parseShard(from)
		last := first
		if err == nil && ranged {
			last, err = parseShard(to)
		}
		if err != nil || last < first {
			return fmt.Errorf("invalid shards %q: want numbers from 0 to %d and ranges, for example 0,4-7", s, record.MaxLogicalShard)
		}
		for n := first; n <= last; n++ {
			*l = append(*l, n)
		}
	}
	slices.Sort(*l)
	*l = slices.Compact(*l)
	return nil
}

// Type implements pflag.Value.
func (l *shardList) Type() string { return "shards" }

func parseShard(s string) (uint32, error) {
	n, err := strconv.ParseUint(strings.TrimSpace(s), 10, 16) // record.MaxLogicalShard has 16 bits
	return uint32(n), err
}
