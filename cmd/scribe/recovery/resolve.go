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
)

// verdict is what is known of a blob. A blob's pointers are appended in one transaction, so it holds for all of them.
type verdict byte

const (
	// uncertain: nothing tells. It is taken as committed.
	uncertain verdict = 0
	// committed: its writer, or the beginning of a later epoch, says so.
	committed verdict = 1
	// void: its pointers were never appended.
	void verdict = 2
	// gone: it was deleted between two scans.
	gone verdict = 3
)

// verdicts are kept in the scratch database, the newest ones in memory.
type verdicts struct {
	s     *scratch
	cache *simplelru.LRU[pointer.BlobID, verdict]
}

func newVerdicts(s *scratch) *verdicts {
	cache, err := simplelru.NewLRU[pointer.BlobID, verdict](64<<10, nil)
	if err != nil {
		panic(err) // the size is a positive constant
	}
	return &verdicts{s: s, cache: cache}
}

func verdictKey(id pointer.BlobID) []byte { return append([]byte{keyVerdict}, id[:]...) }

func (v *verdicts) of(id pointer.BlobID) (verdict, error) {
	if known, ok := v.cache.Get(id); ok {
		return known, nil
	}
	value, err := v.s.get(verdictKey(id))
	if err != nil {
		return 0, err
	}
	known := uncertain
	if len(value) == 1 {
		known = verdict(value[0])
	}
	v.cache.Add(id, known)
	return known, nil
}

// set writes through: the database is read again when the cache has forgotten.
func (v *verdicts) set(id pointer.BlobID, to verdict) error {
	v.cache.Add(id, to)
	return v.s.db.Set(verdictKey(id), []byte{byte(to)}, pebble.NoSync)
}

// resolve decides about every blob. Its order is that of the evidence: what writers say of themselves, what the beginnings of epochs say,
// and only then claims against each other.
func (r *run) resolve(ctx context.Context) error {
	if err := r.scratch.db.DeleteRange([]byte{keyVerdict}, []byte{keyVerdict + 1}, pebble.NoSync); err != nil {
		return err
	}
	v := newVerdicts(r.scratch)
	if err := r.census(ctx, v); err != nil {
		return err
	}
	if err := r.histories(ctx, v); err != nil {
		return err
	}
	rivals, err := r.everyPlace(ctx, v, "epochs", r.byEpoch)
	for pass := 0; err == nil && rivals > 0; pass++ {
		// A blob that lost a place has lost all of its places, which may decide others.
		before := rivals
		if rivals, err = r.everyPlace(ctx, v, "rivals", r.byRival); rivals == before && pass > 0 {
			break
		}
	}
	if err != nil || r.report.Damaged+r.report.Newer > 0 {
		return err // what is missing may be in a blob that can't be read
	}
	return r.predecessors(ctx, v)
}

// predecessors decides about predictions that nothing else tells of: one that counts on what no blob holds was not committed. To void
// one may take away what others count on, so it goes on until nothing changes; after the first time with the logs alone that have any.
func (r *run) predecessors(ctx context.Context, v *verdicts) error {
	var open []record.ShardID
	for shard, err := range r.scratch.shards() {
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return err
		}
		predictions, _, err := r.withoutPredecessor(v, shard)
		if err != nil {
			return err
		}
		if predictions > 0 {
			open = append(open, shard)
		}
	}
	for changed := true; changed; {
		changed = false
		for _, shard := range open {
			_, voided, err := r.withoutPredecessor(v, shard)
			if err = cmp.Or(err, ctx.Err()); err != nil {
				return err
			}
			changed = changed || voided > 0
		}
	}
	return nil
}

// withoutPredecessor voids the uncertain predictions of a log in front of which a record is missing that was not committed when they
// were built. It returns how many uncertain predictions there are, and how many it voided.
func (r *run) withoutPredecessor(v *verdicts, shard record.ShardID) (predictions, voided int, err error) {
	next := record.LSN(0) // behind the newest place that somebody has
	for place, err := range r.scratch.places(shard) {
		if err != nil {
			return 0, 0, err
		}
		taken := false
		for i := range place {
			c := &place[i]
			known, err := v.of(c.blob)
			if err != nil {
				return 0, 0, err
			}
			if known == void || known == gone {
				continue
			}
			if known == uncertain && c.predicted {
				predictions++
				if c.lsn != next && c.start != 0 && c.lsn > c.start {
					voided++
					if err := v.set(c.blob, void); err != nil {
						return 0, 0, err
					}
					continue
				}
			}
			taken = true
		}
		if taken {
			next = place[0].lsn + 1
		}
	}
	return predictions, voided, nil
}

// census marks blobs that are gone and tells of those that could not be read.
func (r *run) census(ctx context.Context, v *verdicts) error {
	for row, err := range r.scratch.rows(keyBlob) {
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return err
		}
		if len(row.key) != 1+4+16 || len(row.value) < blobRowLen {
			return errScratch
		}
		b, err := decodeBlobRow(row.value[:blobRowLen])
		if err != nil {
			return err
		}
		if b.generation != r.scratch.generation {
			r.report.Gone++
			if err := v.set(pointer.BlobID(row.key[5:]), gone); err != nil {
				return err
			}
			continue
		}
		r.report.Bytes += b.size
		finding := Finding{Kind: FindingDamaged}
		switch b.status {
		case statusRead:
			r.report.Blobs++
			if r.report.Oldest == 0 || b.created < r.report.Oldest {
				r.report.Oldest = b.created
			}
			r.report.Newest = max(r.report.Newest, b.created)
			continue
		case statusNewer:
			r.report.Newer++
			finding.Kind = FindingNewer
		default:
			r.report.Damaged++
		}
		kind := finding.Kind
		if err := json.Unmarshal(row.value[blobRowLen:], &finding); err != nil {
			return errScratch
		}
		finding.Kind = kind
		if err := r.deps.Found(finding); err != nil {
			return err
		}
	}
	return nil
}

// told is a build of a run, and what later ones have said of it.
type told struct {
	build   uint64
	blob    pointer.BlobID
	verdict verdict
}

// histories hears what the blobs of each run say of those before them. It remembers as many as a blob can tell of.
func (r *run) histories(ctx context.Context, v *verdicts) error {
	var (
		run    uint64
		recent []told
	)
	forget := func(n int) error {
		for _, t := range recent[:n] {
			if t.verdict == uncertain {
				continue
			}
			if known, err := v.of(t.blob); err != nil || known == gone {
				if err != nil {
					return err
				}
				continue
			}
			if err := v.set(t.blob, t.verdict); err != nil {
				return err
			}
		}
		recent = slices.Delete(recent, 0, n)
		return nil
	}
	for row, err := range r.scratch.rows(keyRun) {
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return err
		}
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
		old, _ := slices.BinarySearchFunc(recent, h.Build, func(t told, build uint64) int {
			return cmp.Compare(t.build, max(build, layout.MaxWindow)-layout.MaxWindow)
		})
		if err := forget(old); err != nil {
			return err
		}
		if err := r.hear(recent, &h); err != nil {
			return err
		}
		recent = append(recent, told{build: h.Build, blob: id})
	}
	return forget(len(recent))
}

// hear takes what a build says of those before it. What was known later counts, but for a contradiction: then the blob is not given up.
func (r *run) hear(recent []told, h *layout.History) error {
	exceptions := h.Exceptions // newest first
	for i := range slices.Backward(recent) {
		t := &recent[i]
		if t.build < h.Build-h.Window {
			break
		}
		for len(exceptions) > 0 && exceptions[0].Build > t.build {
			exceptions = exceptions[1:]
		}
		said := committed
		if len(exceptions) > 0 && exceptions[0].Build == t.build {
			if said = uncertain; exceptions[0].Void {
				said = void
			}
		}
		switch {
		case said == uncertain || said == t.verdict || t.build == h.Build:
		case t.verdict == uncertain:
			t.verdict = said
		default:
			t.verdict = committed
			r.report.Contradictions++
			if err := r.deps.Found(Finding{
				Kind: FindingContradiction, Key: t.blob.String(), Reason: "later blobs of its writer disagree about whether it was committed; it is kept",
			}); err != nil {
				return err
			}
		}
	}
	return nil
}

// epochStart is where an epoch of a shard began.
type epochStart struct {
	epoch uint64
	// lsn is where it began, or a place in it, if it is not exact.
	lsn   record.LSN
	exact bool
}

// starts are the epochs of a shard, in order.
type starts []epochStart

// add notes an entry. Blobs of version 1 do not say where an epoch began: it was at the lowest LSN that it tried, or before.
func (s *starts) add(c *claimant) {
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

// settle makes each one the lowest of it and those behind it: a later epoch never begins below an earlier one.
func (s starts) settle() {
	for i := len(s) - 2; i >= 0; i-- {
		if s[i+1].lsn < s[i].lsn {
			s[i].lsn, s[i].exact = s[i+1].lsn, s[i+1].exact
		}
	}
}

// after is the first epoch behind one.
func (s starts) after(epoch uint64) (epochStart, bool) {
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
func (r *run) shardStarts(shard record.ShardID) (s starts, err error) {
	for row, err := range r.scratch.rows(shardPrefix(shard)...) {
		if err != nil {
			return nil, err
		}
		c, err := decodeEntry(row)
		if err != nil {
			return nil, err
		}
		s.add(&c)
	}
	s.settle()
	return s, nil
}

// everyPlace calls fn with the claimants of every place, and returns the number of places at which fn left more than one.
func (r *run) everyPlace(ctx context.Context, v *verdicts, phase string, fn func(*verdicts, starts, []claimant) (int, error)) (rivals int, err error) {
	done := int64(0)
	for shard, err := range r.scratch.shards() {
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return 0, err
		}
		epochs, err := r.shardStarts(shard)
		if err != nil {
			return 0, err
		}
		for place, err := range r.scratch.places(shard) {
			if err != nil {
				return 0, err
			}
			left, err := fn(v, epochs, place)
			if err != nil {
				return 0, err
			}
			if left > 1 {
				rivals++
			}
			if done++; done%4096 == 0 {
				r.deps.Progress(phase, done)
			}
		}
	}
	return rivals, nil
}

// byEpoch decides by the beginnings of later epochs: whoever opened a log found all below that committed, and nothing above it.
func (r *run) byEpoch(v *verdicts, epochs starts, place []claimant) (int, error) {
	var left []*claimant
	for i := range place {
		c := &place[i]
		known, err := v.of(c.blob)
		if err != nil {
			return 0, err
		}
		if known == void || known == gone {
			continue
		}
		next, ok := epochs.after(c.epoch)
		if !ok || c.lsn < next.lsn {
			left = append(left, c)
			continue
		}
		if known == committed {
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
		if err := v.set(c.blob, void); err != nil {
			return 0, err
		}
	}
	if len(left) == 1 {
		if next, ok := epochs.after(left[0].epoch); ok && next.exact && left[0].lsn < next.lsn {
			return 1, r.confirm(v, left[0].blob)
		}
	}
	return len(left), nil
}

// confirm says that a blob was committed, if nothing was known of it.
func (r *run) confirm(v *verdicts, id pointer.BlobID) error {
	known, err := v.of(id)
	if err != nil || known != uncertain {
		return err
	}
	return v.set(id, committed)
}

// byRival decides between blobs of one epoch that claim a place. One writer built them, and nothing that it built later tells of them:
//
//   - One whose place was not a prediction was built when it was its turn, behind everything that was committed.
//   - Of predictions the later one counts, since a blob is appended only if nothing has changed before it since it was built.
func (r *run) byRival(v *verdicts, _ starts, place []claimant) (int, error) {
	var left []rival
	for i := range place {
		known, err := v.of(place[i].blob)
		if err != nil {
			return 0, err
		}
		if known != void && known != gone {
			left = append(left, rival{&place[i], known})
		}
	}
	if len(left) < 2 {
		return len(left), nil
	}
	builds := make(map[pointer.BlobID]uint64, len(left))
	for _, c := range left {
		build, err := r.buildOf(c.claimant)
		if err != nil {
			return 0, err
		}
		builds[c.blob] = build
	}
	slices.SortFunc(left, func(a, b rival) int { return a.compare(b, builds) })
	kept := 1
	for _, c := range left[1:] {
		if c.known == committed {
			kept++ // which build tells of
			continue
		}
		if err := v.set(c.blob, void); err != nil {
			return 0, err
		}
	}
	return kept, nil
}

// buildOf is the number of the build of a claimant's blob; 0 when it has none.
func (r *run) buildOf(c *claimant) (uint64, error) {
	p, err := pointer.Decode(c.data)
	if err != nil {
		return 0, errScratch
	}
	value, err := r.scratch.get(blobKey(p.Class, c.blob))
	if err != nil || len(value) < blobRowLen {
		return 0, cmp.Or(err, errScratch)
	}
	b, err := decodeBlobRow(value[:blobRowLen])
	return b.build, err
}

// rival is a claimant that may stand.
type rival struct {
	*claimant
	known verdict
}

// compare puts the one that stands first.
func (a rival) compare(b rival, builds map[pointer.BlobID]uint64) int {
	return cmp.Or(
		-cmp.Compare(flag(a.known == committed), flag(b.known == committed)),
		-cmp.Compare(a.epoch, b.epoch),
		cmp.Compare(flag(a.predicted), flag(b.predicted)),
		-cmp.Compare(builds[a.blob], builds[b.blob]),
		-bytes.Compare(a.blob[:], b.blob[:]),
	)
}
