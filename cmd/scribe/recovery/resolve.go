package recovery

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/cockroachdb/pebble/v2"
	"github.com/hashicorp/golang-lru/v2/simplelru"

	"scribe/internal/format/pointer"
	"scribe/internal/format/record"
	"scribe/storage/blob/layout"
	"scribe/storage/metalog"
)

// blobOutcome is the outcome of a blob's commit. A blob's pointers are appended in one transaction, so they share it.
type blobOutcome byte

const (
	// outcomeUncertain: there is no evidence. The blob is treated as committed.
	outcomeUncertain blobOutcome = 0
	// outcomeCommitted: its writer, or the start of a later epoch, proves it.
	outcomeCommitted blobOutcome = 1
	// outcomeVoid: its pointers were never appended.
	outcomeVoid blobOutcome = 2
	// outcomeGone: it was deleted between two scans.
	outcomeGone blobOutcome = 3
)

// outcomeTable stores outcomes in the scratch database, and caches recent ones in memory.
type outcomeTable struct {
	s     *scratchDB
	cache *simplelru.LRU[pointer.BlobID, blobOutcome]
}

func newOutcomeTable(s *scratchDB) *outcomeTable {
	cache, err := simplelru.NewLRU[pointer.BlobID, blobOutcome](64<<10, nil)
	if err != nil {
		panic(err) // the size is a positive constant
	}
	return &outcomeTable{s: s, cache: cache}
}

func outcomeKey(id pointer.BlobID) []byte { return append([]byte{keyOutcome}, id[:]...) }

func (v *outcomeTable) outcomeOf(id pointer.BlobID) (blobOutcome, error) {
	if known, ok := v.cache.Get(id); ok {
		return known, nil
	}
	value, err := v.s.getCopy(outcomeKey(id))
	if err != nil {
		return 0, err
	}
	known := outcomeUncertain
	if len(value) == 1 {
		known = blobOutcome(value[0])
	}
	v.cache.Add(id, known)
	return known, nil
}

// setOutcome writes to the cache and the database, which is read after an eviction from the cache.
func (v *outcomeTable) setOutcome(id pointer.BlobID, to blobOutcome) error {
	v.cache.Add(id, to)
	return v.s.setRow(outcomeKey(id), []byte{byte(to)})
}

// resolveBlobs decides the outcome of every blob, in the order of the strength of evidence: the reports of writers on their own
// blobs, the starts of epochs, and then rival claims.
func (r *recoveryRun) resolveBlobs(ctx context.Context) error {
	if err := r.scratch.db.DeleteRange([]byte{keyOutcome}, []byte{keyOutcome + 1}, pebble.NoSync); err != nil {
		return err
	}
	v := newOutcomeTable(r.scratch)
	if err := r.countRead(ctx, v); err != nil {
		return err
	}
	if err := r.applyHistories(ctx, v); err != nil {
		return err
	}
	if err := r.applyBase(ctx, v); err != nil {
		return err
	}
	rivals, err := r.decideAll(ctx, v, "epochs", r.decideByEpoch)
	for pass := 0; err == nil && rivals > 0; pass++ {
		// A blob that lost a position has lost all of its positions, which may decide other rival claims.
		before := rivals
		if rivals, err = r.decideAll(ctx, v, "rivals", r.decideByRivals); rivals == before && pass > 0 {
			break
		}
	}
	if err != nil || r.report.Damaged+r.report.Newer > 0 {
		return err // the missing records may be in an unreadable blob
	}
	return r.voidUncertain(ctx, v)
}

// openLog is a log with uncertain claims that may have to be voided.
type openLog struct {
	shard record.ShardID
	// predictions counts the uncertain predictions, producers are those whose sequences uncertain claims contain.
	predictions int
	producers   map[uint64]bool
}

// voidUncertain decides claims without other evidence. A prediction that depends on a record in no blob was not committed. Neither was a claim
// that repeats sequences of a producer which are before it in the log, or in the claim itself: the engine would have refused it. Other
// predictions may depend on a blob that is voided, so this is repeated until nothing changes, after the first pass only for logs that have
// such claims.
func (r *recoveryRun) voidUncertain(ctx context.Context, v *outcomeTable) error {
	var open []*openLog
	err := r.scratch.eachShard(ctx, func(shard record.ShardID) error {
		l := &openLog{shard: shard, producers: map[uint64]bool{}}
		_, err := r.voidInLog(ctx, v, l)
		if l.predictions > 0 || len(l.producers) > 0 {
			open = append(open, l)
		}
		return err
	})
	if err != nil {
		return err
	}
	for changed := true; changed; {
		changed = false
		for _, l := range open {
			voided, err := r.voidInLog(ctx, v, l)
			if err != nil {
				return err
			}
			changed = changed || voided > 0
		}
	}
	return nil
}

// voidInLog voids the uncertain predictions of a log in front of which a record is missing that was not committed when they
// were built, and the uncertain claims that repeat sequences of l.producers. It returns how many it voided, and completes l.
func (r *recoveryRun) voidInLog(ctx context.Context, v *outcomeTable, l *openLog) (voided int, err error) {
	base, err := r.baseState(l.shard)
	if err != nil {
		return 0, err
	}
	next := record.LSN(0) // after the newest position that a blob or the base has
	if base != nil {
		next = base.NextLSN
	}
	known := map[uint64]metalog.ProducerState{}
	l.predictions = 0
	err = r.scratch.eachPosition(ctx, l.shard, func(claims []positionClaim) error {
		if base != nil && claims[0].lsn < base.NextLSN {
			return nil
		}
		left, err := v.standing(claims)
		if err != nil {
			return err
		}
		taken := false
		for _, c := range left {
			open := c.known == outcomeUncertain
			var sequences []pointer.Sequence
			if open || len(l.producers) > 0 {
				p, err := pointer.Decode(c.data)
				if err != nil {
					return errScratch
				}
				sequences = p.Sequences
				if err := r.lookUpProducers(base, known, sequences); err != nil {
					return err
				}
			}
			if open {
				if c.predicted {
					l.predictions++
				}
				if c.predicted && c.lsn != next && c.start != 0 && c.lsn > c.start || repeatsAny(known, sequences) {
					voided++
					if err := v.setOutcome(c.blob, outcomeVoid); err != nil {
						return err
					}
					continue
				}
				for _, q := range sequences {
					l.producers[q.Producer] = true
				}
			}
			for _, q := range sequences {
				if l.producers[q.Producer] {
					known[q.Producer] = stateAfter(q)
				}
			}
			taken = true
		}
		if taken {
			next = claims[0].lsn + 1
		}
		return nil
	})
	return voided, err
}

// lookUpProducers adds the states of producers that the base has to those that are known.
func (r *recoveryRun) lookUpProducers(base *metalog.State, known map[uint64]metalog.ProducerState, sequences []pointer.Sequence) error {
	if base == nil {
		return nil
	}
	for _, q := range sequences {
		if _, ok := known[q.Producer]; ok {
			continue
		}
		p, err := r.deps.Base.Producer(base.Shard, q.Producer)
		if err != nil {
			return err
		}
		known[q.Producer] = p
	}
	return nil
}

// repeatsAny reports whether any of the sequences is before those that a log expects next, after those in front of it in the same entry:
// a batcher may join a frame and its repetition in one payload, which the engine refuses.
func repeatsAny(known map[uint64]metalog.ProducerState, sequences []pointer.Sequence) bool {
	own := map[uint64]metalog.ProducerState{}
	for _, q := range sequences {
		p, ok := own[q.Producer]
		if !ok {
			p = known[q.Producer]
		}
		// A gap is not a repetition: a missing record may have had what is between.
		if _, kind := p.Continue(metalog.Sequence(q)); kind == metalog.SequenceDuplicate || kind == metalog.SequenceStaleEpoch {
			return true
		}
		own[q.Producer] = stateAfter(q)
	}
	return false
}

// stateAfter returns the state of a producer whose last sequences are q, whatever was before them.
func stateAfter(q pointer.Sequence) metalog.ProducerState {
	return metalog.ProducerState{Producer: q.Producer, Epoch: q.Epoch, Next: q.Last + 1}
}

// countRead marks deleted blobs, and reports blobs that could not be read.
func (r *recoveryRun) countRead(ctx context.Context, v *outcomeTable) error {
	return r.scratch.eachRow(ctx, []byte{keyBlob}, func(row scratchRow) error {
		b, text, err := decodeBlobRow(row.value)
		if err != nil || len(row.key) != 1+4+16 {
			return errScratch
		}
		if b.Generation != r.scratch.generation {
			r.report.Gone++
			return v.setOutcome(pointer.BlobID(row.key[5:]), outcomeGone)
		}
		r.report.Bytes += b.Size
		kind := FindingDamaged
		switch b.Status {
		case statusRead, statusSettled:
			if r.report.Blobs++; b.Status == statusSettled {
				r.report.Settled++
			}
			if r.report.Oldest == 0 || b.Created < r.report.Oldest {
				r.report.Oldest = b.Created
			}
			r.report.Newest = max(r.report.Newest, b.Created)
			return nil
		case statusNewer:
			r.report.Newer++
			kind = FindingNewer
		default:
			r.report.Damaged++
		}
		var finding Finding
		if err := json.Unmarshal(text, &finding); err != nil {
			return errScratch
		}
		finding.Kind = kind
		return r.deps.Found(finding)
	})
}

// toldBuild is a build of a run, with what later builds reported of it.
type toldBuild struct {
	build   uint64
	blob    pointer.BlobID
	outcome blobOutcome
}

// applyHistories applies the reports of each run's blobs on earlier blobs. In memory it keeps only as many builds as a blob
// reports on.
func (r *recoveryRun) applyHistories(ctx context.Context, v *outcomeTable) error {
	var (
		run    uint64
		recent []toldBuild
	)
	forget := func(n int) error {
		for _, t := range recent[:n] {
			if t.outcome == outcomeUncertain {
				continue
			}
			known, err := v.outcomeOf(t.blob)
			if err == nil && known != outcomeGone {
				err = v.setOutcome(t.blob, t.outcome)
			}
			if err != nil {
				return err
			}
		}
		recent = slices.Delete(recent, 0, n)
		return nil
	}
	err := r.scratch.eachRow(ctx, []byte{keyRun}, func(row scratchRow) error {
		h, id, err := decodeRun(row)
		if err != nil {
			return err
		}
		if h.Run != run {
			if err := forget(len(recent)); err != nil {
				return err
			}
			run = h.Run
		}
		old, _ := slices.BinarySearchFunc(recent, h.Build, func(t toldBuild, build uint64) int {
			return cmp.Compare(t.build, max(build, layout.MaxWindow)-layout.MaxWindow)
		})
		if err := forget(old); err != nil {
			return err
		}
		err = r.applyHistory(recent, &h)
		recent = append(recent, toldBuild{build: h.Build, blob: id})
		return err
	})
	if err != nil {
		return err
	}
	return forget(len(recent))
}

// applyHistory applies a build's report on earlier builds. The later report takes precedence; a blob with contradicting reports
// is kept.
func (r *recoveryRun) applyHistory(recent []toldBuild, h *layout.History) error {
	exceptions := h.Exceptions // newest first
	for i := range slices.Backward(recent) {
		t := &recent[i]
		if t.build < h.Build-h.Window {
			break
		}
		for len(exceptions) > 0 && exceptions[0].Build > t.build {
			exceptions = exceptions[1:]
		}
		reported := outcomeCommitted
		if len(exceptions) > 0 && exceptions[0].Build == t.build {
			if reported = outcomeUncertain; exceptions[0].Void {
				reported = outcomeVoid
			}
		}
		switch {
		case reported == outcomeUncertain || reported == t.outcome || t.build == h.Build:
		case t.outcome == outcomeUncertain:
			t.outcome = reported
		default:
			t.outcome = outcomeCommitted
			r.report.Contradictions++
			if err := r.deps.Found(Finding{
				Kind: FindingContradiction, Key: t.blob.String(), Reason: "later blobs of its writer disagree whether it was committed; it is kept",
			}); err != nil {
				return err
			}
		}
	}
	return nil
}

// epochStart is the first position of an epoch in a shard.
type epochStart struct {
	epoch uint64
	// lsn is the start of the epoch, or a position in it if exact is false.
	lsn   record.LSN
	exact bool
}

// epochStarts are the epochs of a shard, in order.
type epochStarts []epochStart

// addClaim adds the epoch of a claim. Blobs of version 1 do not say where an epoch began: it was at or before the lowest LSN that
// it claimed.
func (s *epochStarts) addClaim(c *positionClaim) {
	e := epochStart{epoch: c.epoch, lsn: c.lsn}
	if c.start != 0 {
		e.lsn, e.exact = c.start, true
	}
	i, ok := slices.BinarySearchFunc(*s, c.epoch, func(a epochStart, epoch uint64) int { return cmp.Compare(a.epoch, epoch) })
	switch {
	case !ok:
		*s = slices.Insert(*s, i, e)
	case e.exact && !(*s)[i].exact, e.exact == (*s)[i].exact && e.lsn < (*s)[i].lsn:
		(*s)[i] = e
	}
}

// lowerStarts lowers each start to the least of the following ones: a later epoch never begins below an earlier one.
func (s epochStarts) lowerStarts() {
	for i := len(s) - 2; i >= 0; i-- {
		if s[i+1].lsn < s[i].lsn {
			s[i].lsn, s[i].exact = s[i+1].lsn, s[i+1].exact
		}
	}
}

// nextEpoch returns the first epoch after a given one.
func (s epochStarts) nextEpoch(epoch uint64) (epochStart, bool) {
	i, _ := slices.BinarySearchFunc(s, epoch, func(a epochStart, epoch uint64) int {
		if a.epoch <= epoch {
			return -1
		}
		return 1
	})
	if i == len(s) {
		return epochStart{}, false
	}
	return s[i], true
}

// shardStarts collects the epochs of a shard.
func (r *recoveryRun) shardStarts(ctx context.Context, shard record.ShardID) (s epochStarts, err error) {
	err = r.scratch.eachRow(ctx, shardPrefix(shard), func(row scratchRow) error {
		c, err := decodeEntry(row)
		if err == nil {
			s.addClaim(&c)
		}
		return err
	})
	s.lowerStarts()
	return s, err
}

// decideAll calls decide with the claims to every position, and returns the number of positions at which it left more than one.
func (r *recoveryRun) decideAll(ctx context.Context, v *outcomeTable, phase string, decide func(*outcomeTable, epochStarts, []positionClaim) (int, error)) (rivals int, err error) {
	done := int64(0)
	err = r.scratch.eachShard(ctx, func(shard record.ShardID) error {
		epochs, err := r.shardStarts(ctx, shard)
		if err != nil {
			return err
		}
		return r.scratch.eachPosition(ctx, shard, func(claims []positionClaim) error {
			left, err := decide(v, epochs, claims)
			if left > 1 {
				rivals++
			}
			if done++; done%4096 == 0 {
				r.deps.Progress(phase, done)
			}
			return err
		})
	})
	return rivals, err
}

// decideByEpoch decides by the starts of later epochs: when a writer opened the log, all records below its start were committed,
// and none above it.
func (r *recoveryRun) decideByEpoch(v *outcomeTable, epochs epochStarts, claims []positionClaim) (int, error) {
	all, err := v.standing(claims)
	if err != nil {
		return 0, err
	}
	var left []rivalClaim
	for _, c := range all {
		next, ok := epochs.nextEpoch(c.epoch)
		if !ok || c.lsn < next.lsn {
			left = append(left, c)
			continue
		}
		if c.known == outcomeCommitted {
			r.report.Contradictions++
			left = append(left, c)
			if err := r.deps.Found(Finding{
				Kind: FindingContradiction, Key: c.blob.String(), Shard: c.shard, From: c.lsn, To: c.lsn + 1,
				Reason: fmt.Sprintf("its writer says that it was committed, but epoch %d of the log began at LSN %d; it is kept", next.epoch, next.lsn),
			}); err != nil {
				return 0, err
			}
			continue
		}
		if err := v.setOutcome(c.blob, outcomeVoid); err != nil {
			return 0, err
		}
	}
	if len(left) == 1 {
		if next, ok := epochs.nextEpoch(left[0].epoch); ok && next.exact && left[0].lsn < next.lsn {
			if left[0].known == outcomeUncertain {
				return 1, v.setOutcome(left[0].blob, outcomeCommitted)
			}
			return 1, nil
		}
	}
	return len(left), nil
}

// decideByRivals decides between blobs of one epoch that claim a position. One writer built them, and none of its later blobs
// reports their outcome.
//
//   - A blob whose position was not a prediction takes precedence: it was built in its turn, after everything before it was committed.
//   - Of predictions the later one counts, since a blob is appended only if nothing has changed before it since it was built.
func (r *recoveryRun) decideByRivals(v *outcomeTable, _ epochStarts, claims []positionClaim) (int, error) {
	left, err := v.standing(claims)
	if err != nil {
		return 0, err
	}
	if len(left) < 2 {
		return len(left), nil
	}
	builds := make(map[pointer.BlobID]uint64, len(left))
	for _, c := range left {
		build, err := r.buildOf(c.positionClaim)
		if err != nil {
			return 0, err
		}
		builds[c.blob] = build
	}
	slices.SortFunc(left, func(a, b rivalClaim) int { return a.compareRival(b, builds) })
	kept := 1
	for _, c := range left[1:] {
		if c.known == outcomeCommitted {
			kept++ // a build reports its outcome
			continue
		}
		if err := v.setOutcome(c.blob, outcomeVoid); err != nil {
			return 0, err
		}
	}
	return kept, nil
}

// buildOf returns the build number of a claim's blob; 0 if it has none.
func (r *recoveryRun) buildOf(c *positionClaim) (uint64, error) {
	p, err := pointer.Decode(c.data)
	if err != nil {
		return 0, errScratch
	}
	value, err := r.scratch.getCopy(blobKey(p.Class, c.blob))
	if err != nil {
		return 0, err
	}
	b, _, err := decodeBlobRow(value)
	return b.Build, err
}

// rivalClaim is a claim that may be valid.
type rivalClaim struct {
	*positionClaim
	known blobOutcome
}

// standing returns the claims of blobs that are neither void nor gone.
func (v *outcomeTable) standing(claims []positionClaim) (left []rivalClaim, err error) {
	for i := range claims {
		known, err := v.outcomeOf(claims[i].blob)
		if err != nil {
			return nil, err
		}
		if known != outcomeVoid && known != outcomeGone {
			left = append(left, rivalClaim{&claims[i], known})
		}
	}
	return left, nil
}

// compareRival orders the claim that wins first.
func (a rivalClaim) compareRival(b rivalClaim, builds map[pointer.BlobID]uint64) int {
	return cmp.Or(
		-cmp.Compare(boolByte(a.known == outcomeCommitted), boolByte(b.known == outcomeCommitted)),
		-cmp.Compare(a.epoch, b.epoch),
		cmp.Compare(boolByte(a.predicted), boolByte(b.predicted)),
		-cmp.Compare(builds[a.blob], builds[b.blob]),
		-bytes.Compare(a.blob[:], b.blob[:]),
	)
}
