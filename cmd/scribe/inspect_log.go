package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"scribe/cmd/scribe/app"
	"scribe/internal/format/pointer"
	"scribe/internal/format/record"
	"scribe/internal/format/sequenced"
	"scribe/internal/transport/discovery"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/blob/layout"
)

func newInspectLog() *cobra.Command {
	var data string
	var verify bool
	var from uint64
	cmd := &cobra.Command{
		Use:   "log CATEGORY",
		Short: "Show and check the pointers of a category's logs",
		Long: `Show every pointer of every physical shard of a category, and check that LSNs are dense, persisted times never decrease and pointers are
valid. With --verify also check that each payload can be read and matches its pointer. For a sequenced category the command shows the logs
that messages are written to, then the sequenced log, whose records name their source, then its progress.

With --data it opens the folder of a stopped cell; otherwise it asks the running cell at --server.`,
		Example: `  scribe inspect log access --verify
  scribe inspect log access --data ./scribe-data --verify`,
		Args: cobra.ExactArgs(1),
	}
	server := serverFlag(cmd)
	cmd.Flags().StringVar(&data, "data", "", "data folder of a stopped cell")
	cmd.Flags().BoolVar(&verify, "verify", false, "read every payload")
	cmd.Flags().Uint64Var(&from, "from-lsn", 0, "start at this LSN in every shard (default: the oldest)")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		inspect := func(url string) error {
			l := &logInspector{cell: discovery.New(rpc.Default(), url, nil), server: url, verify: verify, from: from, stdout: cmd.OutOrStdout(), stderr: cmd.ErrOrStderr()}
			return l.inspectCategory(cmd.Context(), args[0])
		}
		if data == "" {
			return inspect(*server)
		}
		c := app.DefaultConfig()
		c.Data = data
		return withStoppedCell(cmd, c, inspect)
	}
	return cmd
}

// logInspector walks the logs of a category.
type logInspector struct {
	cell    *discovery.Cell
	server  string
	metalog rpc.MetalogService
	verify  bool
	from    uint64
	stdout  io.Writer
	stderr  io.Writer

	category string
	id       uint32
	pointers int
	messages uint64
	damaged  int
	offset   uint64 // that the next record of a sequenced log has at least
}

func (l *logInspector) inspectCategory(ctx context.Context, category string) error {
	l.category = category
	res, err := l.cell.Control().GetCategory(ctx, &scribev1.GetCategoryRequest{Name: category})
	if err != nil {
		return callFailure(l.server, "inspect log "+category, err)
	}
	if l.metalog, err = l.cell.Metalog(ctx); err != nil {
		return err
	}
	l.id = res.GetCategory().GetId()
	shards, err := l.listShards(ctx)
	if err != nil {
		return err
	}
	for _, s := range shards {
		if err := l.inspectShard(ctx, s); err != nil {
			return err
		}
	}
	fmt.Fprintf(l.stderr, "%d shards, %d pointers, %d messages, %d damaged\n", len(shards), l.pointers, l.messages, l.damaged)
	if l.damaged > 0 {
		return errDamaged
	}
	return nil
}

func (l *logInspector) listShards(ctx context.Context) ([]*scribev1.ShardState, error) {
	res, err := l.metalog.ListShards(ctx, &scribev1.ListShardsRequest{Category: l.id})
	if err != nil {
		return nil, fmt.Errorf("list the shards of %s: %w", l.category, err)
	}
	return res.GetStates(), nil
}

func (l *logInspector) inspectShard(ctx context.Context, s *scribev1.ShardState) error {
	shard, next, last := record.ShardID(s.GetShard()), max(s.GetFirstLsn(), l.from), int64(0)
	for next < s.GetNextLsn() {
		res, err := l.metalog.Read(ctx, &scribev1.ReadRequest{Shard: s.GetShard(), From: next, MaxRecords: 1000})
		if rpc.ReasonOf(err) == scribev1.Reason_REASON_CORRUPT {
			// The engine could not read this one: say so, and go on behind it.
			l.reportDamage(shard, next, err)
			next++
			continue
		}
		if rpc.ReasonOf(err) == scribev1.Reason_REASON_TRIMMED {
			// Retention goes on meanwhile.
			states, listErr := l.listShards(ctx)
			if listErr != nil {
				return listErr
			}
			i := slices.IndexFunc(states, func(now *scribev1.ShardState) bool { return now.GetShard() == s.GetShard() })
			if i < 0 {
				return nil // it is empty by now, and was removed
			}
			if states[i].GetFirstLsn() > next {
				s, next = states[i], states[i].GetFirstLsn()
				continue
			}
		}
		if err != nil {
			return fmt.Errorf("read shard %v from LSN %d: %w", shard, next, err)
		}
		if len(res.GetEntries()) == 0 {
			l.reportDamage(shard, next, fmt.Errorf("the log ends here, its tail says %d", s.GetNextLsn()))
			return nil
		}
		for _, e := range res.GetEntries() {
			if e.GetLsn() != next {
				l.reportDamage(shard, next, fmt.Errorf("LSN %d stands where %d is due", e.GetLsn(), next))
			}
			if e.GetTime() < last {
				l.reportDamage(shard, e.GetLsn(), fmt.Errorf("persisted time %d is below that of the record before, %d", e.GetTime(), last))
			}
			next, last = e.GetLsn()+1, e.GetTime()
			if err := l.inspectEntry(ctx, shard, e); err != nil {
				return err
			}
		}
	}
	return nil
}

func (l *logInspector) reportDamage(shard record.ShardID, lsn uint64, err error) {
	l.damaged++
	fmt.Fprintf(l.stderr, "shard %v, LSN %d: %v\n", shard, lsn, err)
}

func (l *logInspector) inspectEntry(ctx context.Context, shard record.ShardID, e *scribev1.Entry) error {
	if sequenced.Reserved(shard) {
		return l.inspectSequenced(shard, e)
	}
	l.pointers++
	p, err := pointer.Decode(e.GetData())
	if err != nil {
		l.reportDamage(shard, e.GetLsn(), err)
		return nil
	}
	l.messages += uint64(p.Messages)
	line := pointerJSON(&p)
	line.Shard, line.LSN, line.Blob = shard.String(), e.GetLsn(), p.Key()
	line.Persisted = timeOf(e.GetTime()).Format(time.RFC3339Nano)
	if err := printLines(l.stdout, line); err != nil || !l.verify {
		return err
	}
	res, err := l.cell.ReadProxy().Fetch(ctx, &scribev1.FetchRequest{Pointers: [][]byte{e.GetData()}, Category: l.category, Encoding: scribev1.PayloadEncoding_PAYLOAD_ENCODING_RAW})
	if err != nil {
		return fmt.Errorf("read the payload of shard %v, LSN %d: %w", shard, e.GetLsn(), err)
	}
	if err := checkPayload(res.GetPayloads()[0], &p, l.category, shard); err != nil {
		l.reportDamage(shard, e.GetLsn(), fmt.Errorf("payload in %s: %w", p.Key(), err))
	}
	return nil
}

// checkPayload compares a payload with its pointer, frame by frame.
func checkPayload(got *scribev1.Payload, p *pointer.Pointer, category string, shard record.ShardID) error {
	if err := rpc.FromInfo(got.GetError()); err != nil {
		return err
	}
	if record.CRC(got.GetData()) != got.GetCrc() {
		return errors.New("it does not match its checksum")
	}
	b, err := decompressPayload(got, p)
	if err != nil {
		return err
	}
	var frames, messages uint32
	for f, err := range record.Split(b) {
		if err == nil {
			err = checkFrame(f.Bytes)
		}
		if err == nil && (f.CategoryName() != category || f.Shard != uint32(shard.Logical())) {
			err = fmt.Errorf("it belongs to category %s, logical shard %d", f.CategoryName(), f.Shard)
		}
		if err != nil {
			return fmt.Errorf("frame at byte %d of the payload: %w", f.Offset, err)
		}
		frames++
		messages += uint32(f.Count) //nolint:gosec // bounded by the frame's format
	}
	if frames != p.Frames || messages != p.Messages {
		return fmt.Errorf("it holds %d frames and %d messages, the pointer says %d and %d", frames, messages, p.Frames, p.Messages)
	}
	return nil
}

func decompressPayload(got *scribev1.Payload, p *pointer.Pointer) ([]byte, error) {
	known := got.GetCodec() == uint32(pointer.CodecNone) || got.GetCodec() == uint32(pointer.CodecZstd)
	if !known || got.GetRawLength() != uint64(p.Length) {
		return nil, fmt.Errorf("codec %d with %d bytes, the pointer says %d bytes", got.GetCodec(), got.GetRawLength(), p.Length)
	}
	return layout.Decompress(nil, pointer.Codec(got.GetCodec()), got.GetData(), int(p.Length))
}

// sequencedLine is a record of a sequenced log. Its payload is that of the source's record, which is shown and checked there.
type sequencedLine struct {
	Shard     string `json:"shard"`
	LSN       uint64 `json:"lsn"`
	Persisted string `json:"persisted"`
	Source    string `json:"source"`
	SourceLSN uint64 `json:"source_lsn"`
	Offset    uint64 `json:"offset"`
	Messages  uint32 `json:"messages,omitempty"`
	Blob      string `json:"blob,omitempty"`
	// Of a gap.
	GapTo uint64 `json:"gap_to,omitempty"`
	Cause string `json:"cause,omitempty"`
}

// positionLine is a record of a log of positions.
type positionLine struct {
	Shard     string            `json:"shard"`
	LSN       uint64            `json:"lsn"`
	Whole     bool              `json:"whole"`
	Part      string            `json:"part"`
	NextLSN   uint64            `json:"next_lsn"`
	Offset    uint64            `json:"next_offset"`
	Horizon   time.Time         `json:"horizon"`
	Positions map[string]uint64 `json:"positions"`
}

// gapCauses are the names of causes.
var gapCauses = map[sequenced.Cause]string{sequenced.CauseTrimmed: "trimmed", sequenced.CauseDamaged: "damaged"}

// inspectSequenced shows and checks a record of the logs that sequencers keep.
func (l *logInspector) inspectSequenced(shard record.ShardID, e *scribev1.Entry) error {
	if !sequenced.IsLog(shard) {
		c, err := sequenced.DecodeChange(shard.Category(), e.GetData())
		if err != nil {
			l.reportDamage(shard, e.GetLsn(), err)
			return nil
		}
		line := positionLine{
			Shard: shard.String(), LSN: e.GetLsn(), Whole: c.Whole, Part: fmt.Sprintf("%d of %d", c.Part+1, c.Parts), NextLSN: uint64(c.Next),
			Offset: c.Offset, Horizon: timeOf(c.Horizon), Positions: make(map[string]uint64, len(c.At)),
		}
		for _, p := range c.At {
			line.Positions[p.Shard.String()] = uint64(p.LSN)
		}
		return printLines(l.stdout, line)
	}
	rec, err := sequenced.Decode(shard.Category(), e.GetData())
	if err == nil && rec.Offset < l.offset {
		err = fmt.Errorf("its messages begin at number %d, those before it ended at %d", rec.Offset, l.offset)
	}
	if err != nil {
		l.reportDamage(shard, e.GetLsn(), err)
		return nil
	}
	l.offset = rec.Offset
	line := sequencedLine{
		Shard: shard.String(), LSN: e.GetLsn(), Persisted: timeOf(e.GetTime()).Format(time.RFC3339Nano),
		Source: rec.Source.String(), SourceLSN: uint64(rec.LSN), Offset: rec.Offset,
	}
	if rec.Kind == sequenced.KindGap {
		line.GapTo, line.Cause = uint64(rec.To), gapCauses[rec.Cause]
		return printLines(l.stdout, line)
	}
	p, err := pointer.Decode(rec.Pointer)
	if err != nil {
		l.reportDamage(shard, e.GetLsn(), err)
		return nil
	}
	l.offset += uint64(p.Messages)
	line.Messages, line.Blob = p.Messages, p.Key()
	return printLines(l.stdout, line)
}
