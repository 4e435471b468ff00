package controlplane

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"scribe/controlplane/request"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// Bounds of pins, as the protocol describes them. A holder above them gets an error and keeps its earlier pins.
const (
	maxPins       = 10_000
	maxPinsInAll  = 200_000
	minPinTTL     = time.Second
	maxPinTTL     = 5 * time.Minute
	defaultPinTTL = 30 * time.Second
)

// pinTable holds the pins: what readers still need of categories that retention is about to remove. Pins live in memory and
// holders repeat them. ListPins says since when this process has collected them.
type pinTable struct {
	mu struct {
		sync.Mutex
		// since is when this process began to collect them.
		since   time.Time
		holders map[string]*pinHolder
		pins    int // of all holders
	}
}

type pinHolder struct {
	expires time.Time
	pins    []*scribev1.Pin
}

func newPins(now time.Time) *pinTable {
	p := &pinTable{}
	p.restart(now)
	return p
}

// restart forgets the pins and begins to collect them anew.
func (p *pinTable) restart(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.since, p.mu.holders, p.mu.pins = now, map[string]*pinHolder{}, 0
}

// replacePins replaces the pins of a holder. It returns false if all holders together would have too many.
func (p *pinTable) replacePins(now time.Time, holder string, list []*scribev1.Pin, ttl time.Duration) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.expireHolders(now)
	before := 0
	if h := p.mu.holders[holder]; h != nil {
		before = len(h.pins)
	}
	if p.mu.pins-before+len(list) > maxPinsInAll {
		return false
	}
	p.mu.pins += len(list) - before
	delete(p.mu.holders, holder)
	if len(list) > 0 {
		p.mu.holders[holder] = &pinHolder{expires: now.Add(ttl), pins: list}
	}
	return true
}

// earliestPins returns the earliest pin of each category, by category, and since when pins have been collected.
func (p *pinTable) earliestPins(now time.Time) ([]*scribev1.Pin, time.Time) {
	p.mu.Lock()
	p.expireHolders(now)
	earliest := map[uint32]int64{}
	for _, h := range p.mu.holders {
		for _, pin := range h.pins {
			if from, ok := earliest[pin.GetCategory()]; !ok || pin.GetFrom() < from {
				earliest[pin.GetCategory()] = pin.GetFrom()
			}
		}
	}
	since := p.mu.since
	p.mu.Unlock()
	out := make([]*scribev1.Pin, 0, len(earliest))
	for _, category := range slices.Sorted(maps.Keys(earliest)) {
		out = append(out, &scribev1.Pin{Category: category, From: earliest[category]})
	}
	return out, since
}

// expireHolders removes holders whose pins have expired. The caller holds mu.
func (p *pinTable) expireHolders(now time.Time) {
	for name, h := range p.mu.holders {
		if !now.Before(h.expires) {
			p.mu.pins -= len(h.pins)
			delete(p.mu.holders, name)
		}
	}
}

func (p *pinTable) countHolders() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.mu.holders)
}

// HoldPins implements rpc.ControlService.
func (c *ControlPlane) HoldPins(ctx context.Context, req *scribev1.HoldPinsRequest) (*scribev1.HoldPinsResponse, error) {
	if err := c.enterCall(); err != nil {
		return nil, err
	}
	defer c.calls.Leave()
	const what = "hold pins"
	var v request.Violations
	if req.GetHolder() == "" {
		v.Add("holder", "is empty")
	}
	v.CheckText("holder", req.GetHolder(), maxMemberID)
	if n := len(req.GetPins()); n > maxPins {
		v.Add("pins", "%d of them, the limit is %d", n, maxPins)
	}
	seen := make(map[uint32]bool, min(len(req.GetPins()), maxPins))
	list := make([]*scribev1.Pin, 0, min(len(req.GetPins()), maxPins))
	for _, pin := range req.GetPins() {
		if seen[pin.GetCategory()] || pin.GetCategory() == 0 || pin.GetFrom() < 0 {
			v.Add("pins", "category %d from %d is listed twice or invalid", pin.GetCategory(), pin.GetFrom())
			break
		}
		seen[pin.GetCategory()] = true
		list = append(list, &scribev1.Pin{Category: pin.GetCategory(), From: pin.GetFrom()})
	}
	ttl := v.Duration("ttl", req.GetTtl(), minPinTTL, maxPinTTL, defaultPinTTL)
	if err := v.Err(what); err != nil {
		return nil, err
	}
	return serveLeading(ctx, c, what, req, rpc.ControlService.HoldPins, func(context.Context, *heldTerm) (*scribev1.HoldPinsResponse, error) {
		if !c.pins.replacePins(time.Now(), req.GetHolder(), list, ttl) {
			return nil, rpc.RetryErrorf(scribev1.Reason_REASON_OVERLOADED, defaultPinTTL, "%s: %d pins are held in all, which is the limit", what, maxPinsInAll)
		}
		return &scribev1.HoldPinsResponse{}, nil
	})
}

// ListPins implements rpc.ControlService.
func (c *ControlPlane) ListPins(ctx context.Context, req *scribev1.ListPinsRequest) (*scribev1.ListPinsResponse, error) {
	if err := c.enterCall(); err != nil {
		return nil, err
	}
	defer c.calls.Leave()
	return serveLeading(ctx, c, "list pins", req, rpc.ControlService.ListPins, func(context.Context, *heldTerm) (*scribev1.ListPinsResponse, error) {
		now := time.Now()
		pins, since := c.pins.earliestPins(now)
		return &scribev1.ListPinsResponse{Pins: pins, Age: durationpb.New(now.Sub(since))}, nil
	})
}
