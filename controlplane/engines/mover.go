package engines

import (
	"context"
	"fmt"
	"time"

	"scribe/storage/kv"
	"scribe/storage/metalog/moving"
	"scribe/storage/metalog/router"
)

// Mover takes the steps of a Planner. One that does not lead any more changes nothing in the store, and what it does in the engines is what its
// successor does, too.
type Mover struct {
	// Store has the homes. Only makes a transaction conditional on the term of the control plane that leads; nil where it has its store for itself.
	Store kv.Store
	Only  func(...kv.Op) []kv.Op
	// Log is the log over the engines.
	Log *router.Log
	// Moves are the settings of the moves of single logs, Pause is the time between two of them.
	Moves moving.Options
	Pause time.Duration
}

// Take takes a step. A Learn returns what the engines say, and so does a Prepare if the category is elsewhere than the planner believed: then nothing was
// done.
func (m *Mover) Take(ctx context.Context, s Step) (learned *Home, err error) {
	switch s.Action {
	case Prepare:
		learned, err = m.prepare(ctx, s)
	case Learn:
		var h Home
		if h, err = m.homeOf(ctx, s.Category); err == nil {
			learned = &h
		}
	case Relocate:
		var r router.Relocation
		if r, err = m.relocation(s.Category, s.Home.From, s.Home.Engine); err == nil {
			r.Version = s.Home.Mark
			_, err = r.Run(ctx)
		}
	case Settle:
		err = m.storeHome(ctx, s.Category, s.Home)
	case Sweep:
		var r router.Relocation
		if r, err = m.relocation(s.Category, s.From, s.Home.Engine); err == nil {
			_, err = r.MoveLogs(ctx)
		}
	default:
		err = fmt.Errorf("an unknown step %d", s.Action)
	}
	if err != nil {
		return nil, fmt.Errorf("%v category %d, home %q: %w", s.Action, s.Category, s.Home.Engine, err)
	}
	return learned, nil
}

// prepare stores that a category goes to another engine, if it is where the planner believes.
func (m *Mover) prepare(ctx context.Context, s Step) (learned *Home, err error) {
	h, err := m.homeOf(ctx, s.Category)
	if err != nil {
		return nil, err
	}
	if h != (Home{Engine: s.Home.From, Mark: s.Home.Mark - 1}) {
		return &h, nil
	}
	// An engine that this process can't reach is no reason to begin what can't be finished.
	if _, err := m.relocation(s.Category, s.Home.From, s.Home.Engine); err != nil {
		return nil, err
	}
	return nil, m.storeHome(ctx, s.Category, s.Home)
}

// homeOf asks the engines.
func (m *Mover) homeOf(ctx context.Context, category uint32) (Home, error) {
	h, err := m.Log.HomeOf(ctx, category)
	return Home{Engine: h.Engine, Mark: h.Version, From: h.From}, err
}

func (m *Mover) relocation(category uint32, from, to string) (r router.Relocation, err error) {
	r = router.Relocation{Category: category, Moves: m.Moves, Pause: m.Pause}
	if r.From, err = m.Log.EngineNamed(from); err == nil {
		r.To, err = m.Log.EngineNamed(to)
	}
	return r, err
}

func (m *Mover) storeHome(ctx context.Context, category uint32, h Home) error {
	value, err := h.Encode()
	if err != nil {
		return err
	}
	ops := []kv.Op{kv.Put(HomeKey(category), value)}
	if m.Only != nil {
		ops = m.Only(ops...)
	}
	_, err = m.Store.Commit(ctx, ops...)
	return err
}
