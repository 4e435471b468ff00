package readproxy

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"scribe/columnar/schema"
	"scribe/columnar/zone"
	"scribe/internal/format/record"
	"scribe/internal/role/zonenote"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/metalog"
)

// Annotator keeps what was learned of payloads beside their pointers: the metadata engine.
type Annotator interface {
	Annotate(ctx context.Context, notes []metalog.Annotation) (kept int, err error)
	Annotations(
		ctx context.Context, shard record.ShardID, from, to record.LSN, kind metalog.AnnotationKind, maxBytes int,
	) (notes []metalog.Annotation, until record.LSN, err error)
}

// zones writes zone maps beside pointers, behind the requests: nobody waits for it. What waits is bounded; what comes when that is full is
// dropped and counted, for it is learned anew.
type zones struct {
	s       *Server
	running sync.WaitGroup
	// known are the places whose columns were learned lately.
	known *lru.Cache[place, string]

	written, dropped, failed atomic.Uint64
	mu                       struct {
		sync.Mutex
		queue   []learned
		writing bool
		closed  bool
	}
}

// place is where a pointer stands.
type place struct {
	shard record.ShardID
	lsn   record.LSN
}

// learned is a zone map on its way.
type learned struct {
	place
	pointer []byte
	zones   *zone.Map
}

const (
	// maxLearned is how many zone maps wait at most, of at most 4 KiB each.
	maxLearned = 1024
	// learnedBatch is how many are written at once.
	learnedBatch = 128
	// knownPlaces is how many places are remembered as learned.
	knownPlaces = 16384
	// annotateTimeout bounds a call of the engine.
	annotateTimeout = 10 * time.Second
)

func newZones(s *Server) (*zones, error) {
	z := &zones{s: s}
	var err error
	z.known, err = lru.New[place, string](knownPlaces)
	return z, err
}

// zonesOf returns the columns of an item whose values are to be learned; none where they are known, where there is nobody to tell, and of
// a payload that reports a loss, which readers must not pass by.
func (a *answer) zonesOf(it *item, losses []*scribev1.LossFrame) []string {
	if a.s.deps.Annotations == nil || it.place == (place{}) || len(losses) > 0 {
		return nil
	}
	columns := []string{schema.ColumnKey, schema.ColumnTime}
	for _, name := range a.s.views.table.Inputs(a.asked.key) {
		switch name {
		case schema.ColumnAttr, schema.ColumnRest, schema.ColumnPayload: // nothing that a map could say of
		default:
			columns = append(columns, name)
		}
	}
	slices.Sort(columns)
	columns = slices.Compact(columns)
	columns = columns[:min(len(columns), zone.MaxColumns)]
	if known, ok := a.s.zones.known.Get(it.place); ok && known == nameOf(columns) {
		return nil
	}
	a.s.zones.known.Add(it.place, nameOf(columns))
	return columns
}

func nameOf(columns []string) string {
	n := 0
	for _, c := range columns {
		n += len(c) + 1
	}
	out := make([]byte, 0, n)
	for _, c := range columns {
		out = append(append(out, c...), 0)
	}
	return string(out)
}

// put has a zone map written, some time.
func (z *zones) put(at place, pointer []byte, m *zone.Map) {
	if m == nil {
		return
	}
	z.mu.Lock()
	defer z.mu.Unlock()
	if z.mu.closed {
		return
	}
	if len(z.mu.queue) >= maxLearned {
		z.dropped.Add(1)
		z.known.Remove(at)
		return
	}
	z.mu.queue = append(z.mu.queue, learned{at, pointer, m})
	if !z.mu.writing {
		z.mu.writing = true
		z.running.Go(z.write)
	}
}

// write writes what waits until nothing does.
func (z *zones) write() {
	for {
		z.mu.Lock()
		batch := z.mu.queue[:min(len(z.mu.queue), learnedBatch)]
		z.mu.queue = z.mu.queue[len(batch):]
		if len(batch) == 0 {
			z.mu.writing, z.mu.queue = false, nil
			z.mu.Unlock()
			return
		}
		z.mu.Unlock()
		ctx, cancel := context.WithTimeout(z.s.running, annotateTimeout)
		n, err := z.annotate(ctx, batch)
		cancel()
		z.written.Add(uint64(n)) //nolint:gosec // a count
		if err != nil {
			z.failed.Add(uint64(len(batch)))
			for _, l := range batch {
				z.known.Remove(l.place)
			}
			if z.s.running.Err() == nil {
				z.s.log.Warn("zone maps could not be written; payloads are not left out for them", "zone_maps", len(batch), "error", err)
			}
		}
	}
}

// annotate writes zone maps, each with what is known beside its pointer already.
func (z *zones) annotate(ctx context.Context, batch []learned) (int, error) {
	slices.SortFunc(batch, func(a, b learned) int { return cmp.Or(cmp.Compare(a.shard, b.shard), cmp.Compare(a.lsn, b.lsn)) })
	var notes []metalog.Annotation
	for i := range batch {
		l := &batch[i]
		found, _, err := z.s.deps.Annotations.Annotations(ctx, l.shard, l.lsn, l.lsn+1, metalog.AnnotationZones, 0)
		if err != nil {
			return 0, err
		}
		m := l.zones
		if len(found) == 1 {
			if old, err := zonenote.Decode(found[0].Data, l.pointer); err == nil {
				if !old.Lacks(m) {
					continue
				}
				m = m.Merge(old)
			}
		}
		notes = append(notes, metalog.Annotation{Shard: l.shard, LSN: l.lsn, Kind: metalog.AnnotationZones, Data: zonenote.Encode(l.pointer, m)})
	}
	if len(notes) == 0 {
		return 0, nil
	}
	return z.s.deps.Annotations.Annotate(ctx, notes)
}

// close drops what waits, and waits for what is being written.
func (z *zones) close() {
	z.mu.Lock()
	z.mu.closed = true
	z.mu.queue = nil
	z.mu.Unlock()
	z.running.Wait()
}
