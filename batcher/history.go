package batcher

import (
	"sync"

	"scribe/internal/base/entropy"
	"scribe/storage/blob/layout"
)

// buildHistory numbers the blobs that the batcher builds, and keeps the states of the newest ones. A blob does not tell whether
// its own pointers were appended; it reports the states of earlier blobs, so that metadata can be rebuilt from blobs alone. It is
// safe for concurrent use and takes a few KB.
type buildHistory struct {
	run uint64
	mu  struct {
		sync.Mutex
		last uint64 // the newest build; 0 if there is none
		// states are those of the newest layout.MaxWindow builds; the index is the build's number modulo layout.MaxWindow.
		states [layout.MaxWindow]buildState
	}
}

// buildState is the state of a build.
type buildState uint8

const (
	buildOpen      buildState = iota // the outcome is pending
	buildCommitted                   // its pointers were appended
	buildVoid                        // they never will be
	buildUnknown                     // the outcome is unknown
)

func newBuildHistory(random *entropy.Source) *buildHistory {
	b := &buildHistory{}
	for b.run == 0 {
		b.run = random.Uint64()
	}
	return b
}

// beginBuild numbers a build, and returns its report on earlier builds.
func (b *buildHistory) beginBuild() layout.History {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.last++
	h := layout.History{Run: b.run, Build: b.mu.last, Window: min(b.mu.last-1, layout.MaxWindow-1)}
	b.mu.states[h.Build%layout.MaxWindow] = buildOpen
	for build := h.Build - 1; build >= h.Build-h.Window && build > 0; build-- {
		if f := b.mu.states[build%layout.MaxWindow]; f != buildCommitted {
			h.Exceptions = append(h.Exceptions, layout.Exception{Build: build, Void: f == buildVoid})
		}
	}
	return h
}

// endBuild sets the state of a build.
func (b *buildHistory) endBuild(build uint64, f buildState) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if build == 0 || b.mu.last-build >= layout.MaxWindow {
		return // the build has left the window
	}
	b.mu.states[build%layout.MaxWindow] = f
}
