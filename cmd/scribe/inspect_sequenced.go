package main

import (
	"fmt"
	"time"

	"scribe/internal/format/pointer"
	"scribe/internal/format/record"
	"scribe/internal/format/sequenced"
	scribev1 "scribe/proto/scribe/v1"
)

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
			l.reportDamage(uint64(shard), e.GetLsn(), err)
			return nil
		}
		line := positionLine{
			Shard: shard.String(), LSN: e.GetLsn(), Whole: c.Whole, Part: fmt.Sprintf("%d of %d", c.Part+1, c.Parts), NextLSN: uint64(c.Next),
			Offset: c.Offset, Horizon: time.UnixMicro(c.Horizon).UTC(), Positions: make(map[string]uint64, len(c.At)),
		}
		for _, p := range c.At {
			line.Positions[p.Shard.String()] = uint64(p.LSN)
		}
		return l.out.Encode(line)
	}
	rec, err := sequenced.Decode(shard.Category(), e.GetData())
	if err == nil && rec.Offset < l.offset {
		err = fmt.Errorf("its messages begin at number %d, those before it ended at %d", rec.Offset, l.offset)
	}
	if err != nil {
		l.reportDamage(uint64(shard), e.GetLsn(), err)
		return nil
	}
	l.offset = rec.Offset
	line := sequencedLine{
		Shard: shard.String(), LSN: e.GetLsn(), Persisted: time.UnixMicro(e.GetTime()).UTC().Format(time.RFC3339Nano),
		Source: rec.Source.String(), SourceLSN: uint64(rec.LSN), Offset: rec.Offset,
	}
	if rec.Kind == sequenced.KindGap {
		line.GapTo, line.Cause = uint64(rec.To), gapCauses[rec.Cause]
		return l.out.Encode(line)
	}
	p, err := pointer.Decode(rec.Pointer)
	if err != nil {
		l.reportDamage(uint64(shard), e.GetLsn(), err)
		return nil
	}
	l.offset += uint64(p.Messages)
	line.Messages, line.Blob = p.Messages, p.Key()
	return l.out.Encode(line)
}
