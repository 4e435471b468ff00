package app

import (
	"context"
	"errors"
	"maps"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"scribe/internal/base/units"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/retention"
)

// CollectorConfig says when retention removes things, and how fast; see retention.Config.
type CollectorConfig struct {
	// Grace is how old a blob must be before it may be looked at: how long a batcher has to commit it, and how far behind its clock may be.
	Grace units.Duration `yaml:"grace"`
	// Linger is how long a blob stays after the last pointer to it was trimmed.
	Linger units.Duration `yaml:"linger"`
	// PinLimit is how far beyond a category's retention readers may hold it back.
	PinLimit units.Duration `yaml:"pin_limit"`
	// Interval is the least time between two looks at what is due.
	Interval units.Duration `yaml:"interval"`
	// SweepInterval is the time between two listings of all blobs.
	SweepInterval units.Duration `yaml:"sweep_interval"`
	// StoreRequests and LogRequests bound the requests a second to the blob store and to the metadata logs.
	StoreRequests float64 `yaml:"store_requests"`
	LogRequests   float64 `yaml:"log_requests"`
	// DeleteBytes bounds the bytes of blobs that are deleted a second; 0 = no bound.
	DeleteBytes units.Bytes `yaml:"delete_bytes"`
	// Adopt is the key of a claim that keeps the collector from working, and that it may replace.
	Adopt string `yaml:"adopt"`
}

func defaultCollector() CollectorConfig {
	d := retention.DefaultConfig()
	return CollectorConfig{
		Grace: units.Duration(d.Grace), Linger: units.Duration(d.Linger), PinLimit: units.Duration(d.PinLimit),
		Interval: units.Duration(d.Interval), SweepInterval: units.Duration(d.SweepInterval),
		StoreRequests: d.StoreRequests, LogRequests: d.LogRequests, DeleteBytes: units.Bytes(d.DeleteBytes),
	}
}

// role is what the role is made with.
func (c *CollectorConfig) role() retention.Config {
	cfg := retention.DefaultConfig()
	cfg.Grace, cfg.Linger, cfg.PinLimit = c.Grace.Std(), c.Linger.Std(), c.PinLimit.Std()
	cfg.Interval, cfg.SweepInterval = c.Interval.Std(), c.SweepInterval.Std()
	cfg.StoreRequests, cfg.LogRequests, cfg.DeleteBytes, cfg.Adopt = c.StoreRequests, c.LogRequests, int64(c.DeleteBytes), c.Adopt
	// A step is a small part of the grace, so that what waits for it does not wait for much longer.
	cfg.BoundaryStep = min(max(cfg.Grace/12, time.Second), cfg.BoundaryStep)
	return cfg
}

func (a *App) startCollector(context.Context) error {
	c, err := retention.New(a.cfg.Collector.role(), retention.Deps{
		Log: a.parts.log, Blobs: a.parts.blobs, Control: a.parts.control, Categories: a.parts.catalog, Owner: a.id, Logger: a.log, Registerer: a.registry,
	})
	if err != nil {
		return err
	}
	a.onStop("collector", c.Close)
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
		a.log.Warn("readers' needs could not be told to the control plane: retention may be faster than they", "error", err)
	}
	return len(needs) > 0
}
