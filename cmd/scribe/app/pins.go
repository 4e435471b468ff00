package app

import (
	"context"
	"errors"
	"maps"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	scribev1 "scribe/proto/scribe/v1"
)

// Pins expire after pinTTL and are renewed every pinInterval.
const (
	pinTTL      = 30 * time.Second
	pinInterval = 10 * time.Second
)

// startPins pins records at the control plane that readers of this process need and retention is about to remove. needs returns, by category,
// the persisted time from which they need records.
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

// atRisk keeps the needs of slow readers, whose records retention is about to remove, or would have removed.
func (a *App) atRisk(needs map[uint32]int64, now time.Time) map[uint32]int64 {
	maps.DeleteFunc(needs, func(id uint32, from int64) bool {
		cat, ok := a.parts.catalog.ByID(id)
		retention := cat.GetRetention().AsDuration()
		return !ok || from <= 0 || now.UnixMicro()-from < (retention-max(retention/8, time.Minute)).Microseconds()
	})
	return needs
}

// holdPins sends the pins to the control plane if there are any, or were any before. It returns whether there are any.
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
