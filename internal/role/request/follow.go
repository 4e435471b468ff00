package request

import (
	"slices"

	"scribe/internal/format/record"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// streamEnd is the end of a stream's frames so far.
type streamEnd struct {
	epoch uint32
	next  uint64
}

// Followers tells which frames of a request belong to streams that continue what earlier requests bring: see WriteRequest.follows. A
// request lists the first such frame of each stream. Every later one of the stream counts as well, since the first may be left out on
// the way: refused, or sampled out.
type Followers struct {
	listed  []uint32
	streams map[record.Stream]bool
	// all: a listed frame could not be read, so that any stream may be the one.
	all bool
}

// NewFollowers returns the followers of a request. It fails with REASON_INVALID if the list is not ascending.
func NewFollowers(listed []uint32) (Followers, error) {
	if !slices.IsSorted(listed) {
		return Followers{}, rpc.Errorf(scribev1.Reason_REASON_INVALID, "the frames that follow others are not in ascending order")
	}
	return Followers{listed: listed}, nil
}

// IsEmpty reports whether no frame is listed.
func (f *Followers) IsEmpty() bool { return len(f.listed) == 0 && len(f.streams) == 0 && !f.all }

// Marks reports whether the current frame of a request's frames belongs to such a stream. It must be called for each frame, in order.
func (f *Followers) Marks(frames *Frames) bool {
	if f.IsEmpty() {
		return false
	}
	listed := false
	for len(f.listed) > 0 && int(f.listed[0]) <= frames.Index {
		listed = listed || int(f.listed[0]) == frames.Index
		f.listed = f.listed[1:]
	}
	switch {
	case frames.Err != nil:
		f.all = f.all || listed
		return false
	case !frames.Sequenced():
		return false
	case listed && !f.all:
		if f.streams == nil {
			f.streams = make(map[record.Stream]bool)
		}
		f.streams[frames.Stream()] = true
	}
	return f.all || f.streams[frames.Stream()]
}

// FollowList finds the frames of a request that follow frames which are not in it, or not before them: those to list.
type FollowList struct {
	ends map[record.Stream]streamEnd
}

// Continues notes a frame with sequences that is taken into the request, and reports whether the frame of its stream that was noted
// before ends where it begins.
func (l *FollowList) Continues(s record.Stream, epoch uint32, first, next uint64) bool {
	if l.ends == nil {
		l.ends = make(map[record.Stream]streamEnd)
	}
	before, ok := l.ends[s]
	l.ends[s] = streamEnd{epoch, next}
	return ok && before == streamEnd{epoch, first}
}
