package readproxy

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"scribe/columnar/zone"
	"scribe/internal/format/record"
	"scribe/storage/metalog"
)

// deafNotes is an engine that answers nothing.
type deafNotes struct{ asked chan struct{} }

func (d deafNotes) Annotate(ctx context.Context, _ []metalog.Annotation) (int, error) {
	<-ctx.Done()
	return 0, ctx.Err()
}

func (d deafNotes) Annotations(
	ctx context.Context, _ record.ShardID, _, _ record.LSN, _ metalog.AnnotationKind, _ int,
) ([]metalog.Annotation, record.LSN, error) {
	select {
	case d.asked <- struct{}{}:
	default:
	}
	<-ctx.Done()
	return nil, 0, ctx.Err()
}

// The end of a server does not wait for an engine that answers nothing, nor for zone maps that wait to be written.
func TestCloseDoesNotWaitForZoneMaps(t *testing.T) {
	synctest.Test(t, closeWithZoneMaps)
}

func closeWithZoneMaps(t *testing.T) {
	t.Helper()
	deaf := deafNotes{asked: make(chan struct{}, 1)}
	cats := newSchemed(t, accessSchema)
	h := newHarnessWith(t, func(d *Deps) { d.Categories, d.Annotations = cats, deaf })
	m := &zone.Map{Version: 1, Rows: 1}
	at := func(lsn int) logPosition { return logPosition{testShard, record.LSN(lsn)} }
	h.server.zones.addMap(at(1), []byte("p"), m)
	select {
	case <-deaf.asked:
	case <-time.After(annotateTimeout / 2):
		t.Fatal("nothing is written")
	}
	const more = maxLearned + 10
	for i := range more {
		h.server.zones.addMap(at(2+i), []byte("p"), m)
	}
	if n := h.server.zones.dropped.Load(); n != more-(maxLearned-1) { // one is being written
		t.Errorf("%d were dropped of %d", n, more)
	}
	began := time.Now()
	if err := h.server.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took > 0 {
		t.Errorf("it took %v", took)
	}
	h.server.zones.addMap(at(1), []byte("p"), m) // after the end: nothing begins
	if n := len(h.server.zones.mu.queue); n != 0 {
		t.Errorf("%d wait to be written", n)
	}
}
