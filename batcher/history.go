package batcher

import (
	"crypto/rand"
	"encoding/binary"
	"sync"

	"scribe/storage/blob/layout"
)

// buildHistory numbers the blobs that the batcher builds, and remembers what became of the newest ones. Each blob reports on those before it, so
// that metadata can be rebuilt from blobs alone: a blob does not say by itself whether its pointers were appended. It is safe for
// concurrent use and takes a few KB.
type buildHistory struct {
	run uint64
	mu  struct {
		sync.Mutex
		last uint64 // the newest build; 0 when there is none
		// states are those of the newest layout.MaxWindow builds, each at its number modulo that.
		states [layout.MaxWindow]buildState
	}
}

// buildState is what became of a build.
type buildState uint8

const (
	buildOpen      buildState = iota // it is on its way
	buildCommitted                   // its pointers were appended
	buildVoid                        // they never will be
	buildUnknown                     // nobody knows
)

func newBuildHistory() *buildHistory {
	b := &buildHistory{}
	for b.run == 0 {
		var random [8]byte
		// crypto/rand.Read never fails: it ends the process when the system has no randomness.
		_, _ = rand.Read(random[:])
		b.run = binary.LittleEndian.Uint64(random[:])
	}
	return b
}

// beginBuild numbers a build and returns what it reports on those before it.
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

// endBuild notes what became of a build.
func (b *buildHistory) endBuild(build uint64, f buildState) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if build == 0 || b.mu.last-build >= layout.MaxWindow {
		return // it is not remembered any more
	}
	b.mu.states[build%layout.MaxWindow] = f
}
