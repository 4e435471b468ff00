package retention

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"scribe/internal/format/pointer"
	"scribe/internal/format/record"
	"scribe/storage/blob"
	"scribe/storage/blob/layout"
	"scribe/storage/metalog"
)

// FindingKind is the kind of a finding.
type FindingKind string

// Kinds of findings.
const (
	// FindingMissing: a pointer refers to a blob that does not exist. The blob's messages are lost.
	FindingMissing FindingKind = "missing"
	// FindingOrphan: no pointer refers to the blob, or ever will. The keeper deletes it.
	FindingOrphan FindingKind = "orphan"
	// FindingExpired: all pointers to the blob were trimmed. The keeper deletes it.
	FindingExpired FindingKind = "expired"
	// FindingYoung: no pointer refers to the blob yet, but its writer may still commit it.
	FindingYoung FindingKind = "young"
	// FindingUnknown: the blob's writer had an epoch that the metadata engine does not know. The keeper keeps it.
	FindingUnknown FindingKind = "unknown"
	// FindingDamaged: no pointer refers to the blob, and its footer can't be read. The keeper keeps it.
	FindingDamaged FindingKind = "damaged"
	// FindingPointer: a record is not a valid pointer, or can't be read.
	FindingPointer FindingKind = "pointer"
)

// Finding is one inconsistency, or a blob without references.
type Finding struct {
	Kind FindingKind
	// Key and Size (bytes) are the blob's; Size is 0 for a missing blob.
	Key  string
	Size int64
	// Category, Shard and LSN are the position of the last pointer to it, for the kinds missing and pointer.
	Category string
	Shard    record.ShardID
	LSN      record.LSN
	// Pointers is the number of pointers to it, for the kind missing.
	Pointers int
	// Err is the error of a read or decode, if any.
	Err error
}

// AuditResult counts the audited blobs and pointers.
type AuditResult struct {
	Blobs, Pointers int
	Bytes           int64
	// Boundary is the engine's, in Unix microseconds: older blobs can't be committed any more.
	Boundary int64
}

// AuditCategory names a category whose logs are audited.
type AuditCategory struct {
	ID   uint32
	Name string
}

// AuditLog is what an audit reads: the logs of a cell, or of one of its engines. Of a log that has moved, one engine has a part.
type AuditLog interface {
	Log
	Stays(ctx context.Context, shard record.ShardID) ([]metalog.Stay, error)
}

// Audit compares all pointers with all blobs, and calls fn for each finding. It only reads, and may run beside writers and a keeper. It
// holds some 150 bytes for each blob that a pointer refers to. An error of fn ends it.
func Audit(ctx context.Context, log AuditLog, blobs blob.Store, categories []AuditCategory, fn func(Finding) error) (AuditResult, error) {
	a := &auditRun{ctx: ctx, log: log, blobs: blobs, fn: fn, refs: map[string]*blobReference{}}
	var err error
	if a.result.Boundary, err = log.AdvanceBoundary(ctx, 0); err != nil {
		return a.result, fmt.Errorf("read the boundary: %w", err)
	}
	for _, c := range categories {
		if err := a.auditCategory(c); err != nil {
			return a.result, err
		}
	}
	if err := a.checkBlobs(); err != nil {
		return a.result, err
	}
	return a.result, a.reportMissing()
}

// blobReference are the pointers to a blob.
type blobReference struct {
	category string
	shard    record.ShardID
	lsn      record.LSN // the last one seen: it is trimmed last
	pointers int
	there    bool
}

type auditRun struct {
	ctx    context.Context //nolint:containedctx // Audit's
	log    AuditLog
	blobs  blob.Store
	fn     func(Finding) error
	refs   map[string]*blobReference
	result AuditResult
}

// auditCategory reads the logs of a category, and counts what they refer to.
func (a *auditRun) auditCategory(c AuditCategory) error {
	states, err := a.log.Shards(a.ctx, c.ID)
	if err != nil {
		return fmt.Errorf("list the logs of %s: %w", c.Name, err)
	}
	for _, st := range states {
		for next := st.FirstLSN; next < st.NextLSN; {
			entries, err := a.log.Read(a.ctx, st.Shard, next, 0, 0)
			var trimmed *metalog.TrimmedError
			switch {
			case errors.As(err, &trimmed):
				next = trimmed.First
				continue
			case errors.Is(err, metalog.ErrElsewhere):
				if next, err = a.nextStay(st.Shard, next); err != nil {
					return fmt.Errorf("list the stays of %s, shard %v: %w", c.Name, st.Shard, err)
				}
				continue
			case errors.Is(err, metalog.ErrCorrupt):
				if err := a.fn(Finding{Kind: FindingPointer, Category: c.Name, Shard: st.Shard, LSN: next, Err: err}); err != nil {
					return err
				}
				next++
				continue
			case err != nil:
				return fmt.Errorf("read %s, shard %v, from LSN %d: %w", c.Name, st.Shard, next, err)
			}
			if len(entries) == 0 {
				break // erased meanwhile
			}
			for i := range entries {
				if err := a.notePointer(c.Name, st.Shard, &entries[i]); err != nil {
					return err
				}
			}
			next = entries[len(entries)-1].LSN + 1
		}
	}
	return nil
}

// nextStay returns where the engine has records of a log again, at or after an LSN that another engine has; the largest LSN if it has none.
func (a *auditRun) nextStay(shard record.ShardID, lsn record.LSN) (record.LSN, error) {
	stays, err := a.log.Stays(a.ctx, shard)
	if err != nil {
		return 0, err
	}
	for _, s := range stays { // by LSN
		if s.FirstLSN < s.NextLSN && s.FirstLSN > lsn {
			return s.FirstLSN, nil
		}
	}
	return math.MaxUint64, nil
}

func (a *auditRun) notePointer(category string, shard record.ShardID, e *metalog.Entry) error {
	data, err := pointerIn(shard, e.Data)
	if err == nil && data == nil {
		return nil
	}
	a.result.Pointers++
	var p pointer.Pointer
	if err == nil {
		p, err = pointer.Decode(data)
	}
	if err != nil {
		return a.fn(Finding{Kind: FindingPointer, Category: category, Shard: shard, LSN: e.LSN, Err: err})
	}
	r := a.refs[p.Key()]
	if r == nil {
		r = &blobReference{}
		a.refs[p.Key()] = r
	}
	r.category, r.shard, r.lsn = category, shard, e.LSN
	r.pointers++
	return nil
}

// checkBlobs lists all blobs, and classifies those without references.
func (a *auditRun) checkBlobs() error {
	for info, err := range a.blobs.List(a.ctx, pointer.KeyRoot) {
		if err != nil {
			return fmt.Errorf("list blobs: %w", err)
		}
		a.result.Blobs++
		a.result.Bytes += info.Size
		if r := a.refs[info.Key]; r != nil {
			r.there = true
			continue
		}
		if err := a.classifyUnreferenced(info); err != nil {
			return err
		}
	}
	return nil
}

// classifyUnreferenced classifies a blob to which no pointer referred when the logs were read; it may have got one since.
func (a *auditRun) classifyUnreferenced(info blob.Info) error {
	f := Finding{Key: info.Key, Size: info.Size}
	footer, err := layout.ReadFooter(a.ctx, a.blobs, info.Key)
	switch {
	case errors.Is(err, blob.ErrNotFound):
		return nil
	case errors.Is(err, layout.ErrDamaged), errors.Is(err, layout.ErrVersion), errors.Is(err, pointer.ErrInvalid):
		f.Kind, f.Err = FindingDamaged, err
		return a.fn(f)
	case err != nil:
		return err
	}
	status, err := classifyBlob(a.ctx, a.log, func(context.Context) error { return nil }, footer, func(uint32) time.Duration { return 0 })
	switch {
	case err != nil:
		return err
	case status.unknown:
		f.Kind = FindingUnknown
	case !status.dead:
		return nil
	case footer.ID.Time() >= a.result.Boundary:
		f.Kind = FindingYoung
	case status.kind == kindExpired:
		f.Kind = FindingExpired
	default:
		f.Kind = FindingOrphan
	}
	return a.fn(f)
}

// reportMissing reports pointers whose blobs do not exist, unless the pointers were trimmed in the meantime.
func (a *auditRun) reportMissing() error {
	for key, r := range a.refs {
		if r.there {
			continue
		}
		// The blob may have been stored after the listing passed its key, or trimmed and deleted before the listing reached it.
		_, err := a.blobs.Stat(a.ctx, key)
		if err == nil {
			continue
		}
		if !errors.Is(err, blob.ErrNotFound) {
			return err
		}
		states, err := a.log.Tail(a.ctx, []record.ShardID{r.shard})
		if err != nil {
			return err
		}
		if states[0].FirstLSN > r.lsn || states[0].Epoch == 0 {
			continue
		}
		f := Finding{Kind: FindingMissing, Key: key, Category: r.category, Shard: r.shard, LSN: r.lsn, Pointers: r.pointers}
		if err := a.fn(f); err != nil {
			return err
		}
	}
	return nil
}
