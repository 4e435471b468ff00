package batcher

import (
	"crypto/rand"
	"encoding/binary"
	"sync"

	"scribe/storage/blob/layout"
)

// builds numbers the blobs that the batcher builds, and remembers what became of the newest ones. Each blob tells of those before it, so
// that metadata can be rebuilt from blobs alone: a blob does not say by itself whether its pointers were appended. It is safe for
// concurrent use and takes a few KB.
type builds struct {
	run uint64
	mu  struct {
		sync.Mutex
		last uint64 // the newest build; 0 when there is none
		// fates are those of the newest layout.MaxWindow builds, each at its number modulo that.
		fates [layout.MaxWindow]fate
	}
}

// fate is what became of a build.
type fate uint8

const (
	fateOpen      fate = iota // it is on its way
	fateCommitted             // its pointers were appended
	fateVoid                  // they never will be
	fateUnknown               // nobody knows
)

func newBuilds() *builds {
	b := &builds{}
	for b.run == 0 {
		var random [8]byte
		// crypto/rand.Read never fails: it ends the process when the system has no randomness.
		_, _ = rand.Read(random[:])
		b.run = binary.LittleEndian.Uint64(random[:])
	}
	return b
}

// begin numbers a build and returns what it tells of those before it.
func (b *builds) begin() layout.History {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.last++
	h := layout.History{Run: b.run, Build: b.mu.last, Window: min(b.mu.last-1, layout.MaxWindow-1)}
	b.mu.fates[h.Build%layout.MaxWindow] = fateOpen
	for build := h.Build - 1; build >= h.Build-h.Window && build > 0; build-- {
		if f := b.mu.fates[build%layout.MaxWindow]; f != fateCommitted {
			h.Exceptions = append(h.Exceptions, layout.Exception{Build: build, Void: f == fateVoid})
		}
	}
	return h
}

// end notes what became of a build.
func (b *builds) end(build uint64, f fate) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if build == 0 || b.mu.last-build >= layout.MaxWindow {
		return // it is not remembered any more
	}
	b.mu.fates[build%layout.MaxWindow] = f
}
