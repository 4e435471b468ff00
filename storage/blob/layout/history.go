package layout

import (
	"encoding/binary"
	"fmt"
	"math"
	"time"

	"scribe/internal/format/pointer/field"
)

// MaxWindow bounds how many earlier builds a history covers.
const MaxWindow = 1024

// History is what a writer knew of its earlier blobs when it built this one. It allows lost metadata to be rebuilt: a blob does
// not show whether its own pointers were appended, but the blobs that its writer built later do.
type History struct {
	// Run is a random number of the writer's process, never 0; 0 means that there is no history.
	Run uint64
	// Build is the blob's number within the run, from 1, in the order in which blobs were built.
	Build uint64
	// Window is how many builds right before this one the history covers: at most [MaxWindow]. All of them were committed, except
	// Exceptions.
	Window uint64
	// Exceptions are the builds of the window that were not known to be committed, newest first.
	Exceptions []Exception
}

// Exception is a build that was not known to be committed.
type Exception struct {
	Build uint64
	// Void says that the build will never be committed. Otherwise it was in progress, or its outcome is unknown.
	Void bool
}

// Settings are the settings of a category in a blob, so that the category can be set up again. Unknown ones are 0.
type Settings struct {
	Retention time.Duration // whole microseconds
	Shards    uint32
	// Delivery and Repeatable are numbers of the protocol's enumerations.
	Delivery   uint8
	Repeatable uint8
}

// validateHistory returns the first violation of a history.
func (h *History) validateHistory() error {
	if h.Run == 0 {
		if h.Build != 0 || h.Window != 0 || len(h.Exceptions) != 0 {
			return fmt.Errorf("history: build %d without a run", h.Build)
		}
		return nil
	}
	if h.Build == 0 || h.Window > MaxWindow || h.Window >= h.Build {
		return fmt.Errorf("history: build %d tells of %d before it", h.Build, h.Window)
	}
	last := h.Build
	for _, e := range h.Exceptions {
		if e.Build >= last || e.Build < h.Build-h.Window {
			return fmt.Errorf("history: build %d is an exception of build %d, which tells of %d before it", e.Build, h.Build, h.Window)
		}
		last = e.Build
	}
	return nil
}

func appendHistory(dst []byte, h *History) []byte {
	dst = binary.LittleEndian.AppendUint64(dst, h.Run)
	dst = binary.AppendUvarint(dst, h.Build)
	dst = binary.AppendUvarint(dst, h.Window)
	dst = binary.AppendUvarint(dst, uint64(len(h.Exceptions)))
	last := h.Build
	for _, e := range h.Exceptions {
		void := uint64(0)
		if e.Void {
			void = 1
		}
		dst = binary.AppendUvarint(dst, (last-e.Build)<<1|void)
		last = e.Build
	}
	return dst
}

func readHistory(r *field.Reader) (h History) {
	h.Run = r.Fixed64("writer's run")
	h.Build = r.Uvarint("build", math.MaxUint64)
	h.Window = r.Uvarint("window", MaxWindow)
	n := r.Count("exceptions", MaxWindow, 1)
	if n > 0 {
		h.Exceptions = make([]Exception, n)
	}
	last := h.Build
	for i := range h.Exceptions {
		v := r.Uvarint("exception", MaxWindow<<1|1)
		back := v >> 1
		if back == 0 || back >= last {
			r.Fail("exception", "%d builds before build %d", back, last)
			return h
		}
		last -= back
		h.Exceptions[i] = Exception{Build: last, Void: v&1 != 0}
	}
	if r.Err() == nil {
		if err := h.validateHistory(); err != nil {
			r.Fail("history", "%v", err)
		}
	}
	return h
}

func appendSettings(dst []byte, s *Settings) []byte {
	if s == nil {
		s = &Settings{}
	}
	dst = binary.AppendUvarint(dst, uint64(s.Retention.Microseconds()))
	dst = binary.AppendUvarint(dst, uint64(s.Shards))
	return append(dst, s.Delivery, s.Repeatable)
}

// maxRetention bounds the retention in a footer: the limit of time.Duration.
const maxRetention = math.MaxInt64 / 1000

func readSettings(r *field.Reader) *Settings {
	s := &Settings{
		Retention:  time.Duration(r.Uvarint("retention", maxRetention)) * time.Microsecond,
		Shards:     r.Uint32("shards"),
		Delivery:   r.Fixed8("delivery"),
		Repeatable: r.Fixed8("repeatability"),
	}
	if *s == (Settings{}) {
		return nil
	}
	return s
}
