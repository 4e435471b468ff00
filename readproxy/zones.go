package readproxy

import (
	"cmp"
	"context"
	"slices"
	"strings"
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

// Annotator stores the zone maps of payloads beside their pointers. The metadata engine implements it.
type Annotator interface {
	Annotate(ctx context.Context, notes []metalog.Annotation) (kept int, err error)
	Annotations(
		ctx context.Context, shard record.ShardID, from, to record.LSN, kind metalog.AnnotationKind, maxBytes int,
	) (notes []metalog.Annotation, until record.LSN, err error)
}

// zoneWriter writes zone maps beside pointers, after the requests. A dropped zone map is computed again later.
type zoneWriter struct {
	s *Server
	writeBehind[learnedZones]
	// known are the recently learned columns, by position.
	known *lru.Cache[logPosition, string]

	written, dropped, failed atomic.Uint64
}

// logPosition is the position of a pointer in its log.
type logPosition struct {
	shard record.ShardID
	lsn   record.LSN
}

// learnedZones is a zone map to be written.
type learnedZones struct {
	logPosition
	pointer []byte
	zones   *zone.Map
}

const (
	// maxLearned bounds the zone maps that wait, of at most 4 KiB each.
	maxLearned = 1024
	// learnedBatch bounds the zone maps in one write.
	learnedBatch = 128
	// knownPlaces bounds the positions that are remembered as learned.
	knownPlaces = 16384
	// annotateTimeout bounds a call to the engine.
	annotateTimeout = 10 * time.Second
)

func newZones(s *Server) (*zoneWriter, error) {
	z := &zoneWriter{s: s}
	z.writeBehind = writeBehind[learnedZones]{
		write: z.writeMaps, sizeOf: func(learnedZones) int64 { return 1 }, limit: maxLearned, writers: 1, perBatch: learnedBatch,
	}
	var err error
	z.known, err = lru.New[logPosition, string](knownPlaces)
	return z, err
}

// zonesOf returns the columns of an item whose values are to be learned. There are none if they are known, if there is no
// annotator, if the payload has a loss report, which readers must not skip, or if it is encrypted: values are stored beside pointers as they are.
func (a *fetchAnswer) zonesOf(it *answerItem, losses []*scribev1.LossFrame) []string {
	if a.s.deps.Annotations == nil || it.position == (logPosition{}) || len(losses) > 0 || it.pointer.Codec.IsEncrypted() {
		return nil
	}
	columns := []string{schema.ColumnKey, schema.ColumnTime}
	for _, name := range a.s.views.table.Inputs(a.asked.key) {
		switch name {
		case schema.ColumnAttr, schema.ColumnRate, schema.ColumnRest, schema.ColumnPayload: // a zone map has nothing on these
		default:
			columns = append(columns, name)
		}
	}
	slices.Sort(columns)
	columns = slices.Compact(columns)
	columns = columns[:min(len(columns), zone.MaxColumns)]
	if known, ok := a.s.zones.known.Get(it.position); ok && known == strings.Join(columns, "\x00") {
		return nil
	}
	a.s.zones.known.Add(it.position, strings.Join(columns, "\x00"))
	return columns
}

// addMap queues a zone map to be written.
func (z *zoneWriter) addMap(at logPosition, pointer []byte, m *zone.Map) {
	if m == nil {
		return
	}
	if !z.addItem(learnedZones{at, pointer, m}) {
		z.dropped.Add(1)
		z.known.Remove(at)
	}
}

func (z *zoneWriter) writeMaps(batch []learnedZones) {
	ctx, cancel := context.WithTimeout(z.s.running, annotateTimeout)
	defer cancel()
	n, err := z.annotateBatch(ctx, batch)
	z.written.Add(uint64(n)) //nolint:gosec // a count
	if err == nil {
		return
	}
	z.failed.Add(uint64(len(batch)))
	for _, l := range batch {
		z.known.Remove(l.logPosition)
	}
	if z.s.running.Err() == nil {
		z.s.log.Warn("zone maps not written: queries skip fewer payloads", "zone_maps", len(batch), "error", err)
	}
}

// annotateBatch writes zone maps, each merged with the one that is already stored beside its pointer.
func (z *zoneWriter) annotateBatch(ctx context.Context, batch []learnedZones) (int, error) {
	slices.SortFunc(batch, func(a, b learnedZones) int { return cmp.Or(cmp.Compare(a.shard, b.shard), cmp.Compare(a.lsn, b.lsn)) })
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
