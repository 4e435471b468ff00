package controlplane

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"scribe/storage/kv"
)

// Keys of the leadership (docs/format/catalog.md). The term's key changes only with the leader: what only a leader may write is
// conditional on its revision. Beats have a key of their own, so that they do not disturb these conditions.
const (
	leaderPrefix  = "leader/"
	leaderTermKey = leaderPrefix + "term"
	leaderBeatKey = leaderPrefix + "beat"
)

// leaderVersion is the version of leaderTerm.
const leaderVersion = 1

// maxLeaderText bounds the name and the URL of a leader.
const maxLeaderText = 2048

// leaderTerm is the stored form of a term: who leads, or that the last leader has handed over.
type leaderTerm struct {
	Version int `json:"version"`
	// Term grows by one with each leader.
	Term uint64 `json:"term"`
	// Holder names the instance that leads; empty once it has handed over.
	Holder string `json:"holder,omitempty"`
	URL    string `json:"url,omitempty"`
	// Since is when the term began, Unix microseconds.
	Since int64 `json:"since"`
}

// isFree reports whether nobody leads: no instance ever has, or the last one has handed over.
func (t leaderTerm) isFree() bool { return t.Holder == "" }

func encodeTerm(t leaderTerm) ([]byte, error) {
	t.Version = leaderVersion
	return json.Marshal(t)
}

func decodeTerm(value []byte) (leaderTerm, error) {
	var t leaderTerm
	err := json.Unmarshal(value, &t)
	switch {
	case err != nil:
	case t.Version != leaderVersion:
		err = fmt.Errorf("version %d, this program knows version %d", t.Version, leaderVersion)
	case t.Term == 0 || len(t.Holder) > maxLeaderText || len(t.URL) > maxLeaderText:
		err = errors.New("the term, the holder or the URL is out of bounds")
	}
	if err != nil {
		return leaderTerm{}, fmt.Errorf("%w: %s: %w", kv.ErrCorrupt, leaderTermKey, err)
	}
	return t, nil
}

// encodeBeat returns the stored form of a beat, in decimal, for people: instances only compare the revisions of its key.
func encodeBeat(n uint64) []byte { return strconv.AppendUint(nil, n, 10) }

// leaderState is what one read of the store shows.
type leaderState struct {
	term leaderTerm
	// unreadable says that there is a term that this program does not understand. Somebody leads, or has.
	unreadable bool
	// termRevision and beatRevision are those of the keys, 0 without one.
	termRevision, beatRevision uint64
}

// election decides when an instance that stands by takes over. It is a plain state machine: its methods take what was read, and
// times of a clock that does not go back.
//
// Silence is counted, not measured from a point in time: a read adds to it the time since the read before, at most interval, if
// both found the same term and beat. So neither a store that does not answer nor a process that was stopped for a while takes a
// leader that lives for silent, and it takes several reads.
type election struct {
	interval, patience time.Duration
	// reluctant says that a term that is free is left to others, until it has been silent, too.
	reluctant bool

	// known says that the last read succeeded; it returned state at readAt.
	known   bool
	state   leaderState
	readAt  time.Time
	silence time.Duration
}

// noteRead records a successful read, and reports whether this instance may try to take over.
func (e *election) noteRead(s leaderState, began, ended time.Time) bool {
	if e.known && s.termRevision == e.state.termRevision && s.beatRevision == e.state.beatRevision {
		e.silence += min(max(began.Sub(e.readAt), 0), e.interval)
	} else {
		e.silence = 0
	}
	e.known, e.state, e.readAt = true, s, ended
	return !s.unreadable && s.term.isFree() && !e.reluctant || e.silence >= e.patience
}

// noteFailure records a read that failed: the leader may be unable to beat for the same reason.
func (e *election) noteFailure() { e.known, e.silence = false, 0 }
