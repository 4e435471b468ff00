package app

import (
	"context"
	"errors"
	"maps"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	scribev1 "scribe/proto/scribe/v1"
	"scribe/retention"
)

func (a *App) startRetention(context.Context) error {
	c, err := retention.New(a.cfg.retentionConfig(), retention.Deps{
		Log: a.parts.log, Blobs: a.parts.blobs, Control: a.parts.control, Categories: a.parts.catalog, Owner: a.id, Logger: a.log, Registerer: a.registry,
	})
	if err != nil {
		return err
	}
	a.onStop("retention", c.Close)
	return nil
}

// Pins are held for a while, and repeated more often than they end.
const (
	pinTTL      = 30 * time.Second
	pinInterval = 10 * time.Second
)

// startPins tells the control plane what the readers of this process need that retention is about to take. needs returns, by category, the
// persisted time from which they need records.
func (a *App) startPins(needs func() map[uint32]int64) error {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		ticker := time.NewTicker(pinInterval)
		defer ticker.Stop()
		holding := false
		for {
			select {
			case <-ticker.C:
				holding = a.holdPins(ctx, a.atRisk(needs(), time.Now()), holding)
			case <-ctx.Done():
				return
			}
		}
	}()
	a.onStop("reader pins", func(context.Context) error { cancel(); <-ended; return nil })
	return nil
}

// atRisk are the needs that retention is about to take, or would have taken: those of readers that are far behind.
func (a *App) atRisk(needs map[uint32]int64, now time.Time) map[uint32]int64 {
	maps.DeleteFunc(needs, func(id uint32, from int64) bool {
		cat, ok := a.parts.catalog.ByID(id)
		retention := cat.GetRetention().AsDuration()
		return !ok || from <= 0 || now.UnixMicro()-from < (retention-max(retention/8, time.Minute)).Microseconds()
	})
	return needs
}

// holdPins tells of pins when there are some, or were. It returns whether there are.
func (a *App) holdPins(ctx context.Context, needs map[uint32]int64, holding bool) bool {
	if len(needs) == 0 && !holding {
		return false
	}
	const most = 10_000 // of the protocol
	req := &scribev1.HoldPinsRequest{Holder: a.id, Ttl: durationpb.New(pinTTL)}
	for id, from := range needs {
		if len(req.Pins) < most {
			req.Pins = append(req.Pins, &scribev1.Pin{Category: id, From: from})
		}
	}
	ctx, cancel := context.WithTimeout(ctx, pinInterval)
	defer cancel()
	if _, err := a.parts.control.HoldPins(ctx, req); err != nil && !errors.Is(err, context.Canceled) {
		a.log.Warn("failed to pin records for slow readers: retention may remove them before they are read", "error", err)
	}
	return len(needs) > 0
}
