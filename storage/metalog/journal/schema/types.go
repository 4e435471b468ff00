package schema

import "encoding/hex"

// Version is the version that this build writes, of heads and of entries, and the newest that it reads of entries.
const Version = 1

// DetachedVersion is the version of the head of a journal that has ended, and the newest that this build reads of heads. Builds that know
// only Version refuse it, so they neither lead such a journal nor follow it. No other head is written in it.
const DetachedVersion = 2

// Limits of the format.
const (
	// MaxPayload is the largest payload of an entry in bytes: a transaction of 32 MiB and what its states add.
	MaxPayload = 40 << 20
	// MaxEntry is the largest encoded entry in bytes: a payload that does not compress, and what surrounds it.
	MaxEntry = MaxPayload + 1<<10
	// MaxURL bounds a leader's URL in bytes.
	MaxURL = 512
	// MaxDetached bounds the name of the node in the head of a journal that has ended, in bytes.
	MaxDetached = 63
	// MaxHead is the largest encoded head in bytes.
	MaxHead = 1 << 10
)

// ID is a random number of 128 bits. The zero ID means none.
type ID [16]byte

// String returns the id in hexadecimal.
func (id ID) String() string { return hex.EncodeToString(id[:]) }

// Chain is a hash over an entry and, through the chain in it, over all entries before it. The chain before the first entry is zero.
type Chain [16]byte

// String returns the hash in hexadecimal.
func (c Chain) String() string { return hex.EncodeToString(c[:]) }

// Head is the head of a journal: how far it goes, and who may append.
type Head struct {
	// Revision is the engine's own number of this version of the head. It is not part of the encoded head. 0 means that the journal
	// was never written. It grows with every change.
	Revision uint64
	// Term counts leaders: each takeover adds one. 0 before the first one.
	Term uint64
	// Owner is drawn by the leader when it takes over. The zero ID means that nobody leads: the last leader handed over.
	Owner ID
	// Leader is the URL at which the leader serves writes; empty when nobody leads.
	Leader string
	// Beat counts the changes of the head that append nothing, over all terms.
	Beat uint64
	// Seq is the number of the last entry; the first one has 1. 0 means that there is none.
	Seq uint64
	// Entry is the id of the last entry, drawn for its append.
	Entry ID
	// Chain is the chain after the last entry.
	Chain Chain
	// Time is a watermark in Unix µs: no entry after Seq has a time below it. It never decreases.
	Time int64
	// Bound is the bound of the leader's clock in Unix µs: no leader has told a time above it. The next leader begins at it. It
	// never decreases, but when a leader hands over.
	Bound int64
	// Snapshot is the number of the last entry in the newest snapshot of the replicas; 0 means that there is none. It never
	// decreases. Entries above it are never trimmed.
	Snapshot uint64
	// Detached is the name of the node that took the metadata along: the journal has ended, and this is its last head. Empty while the
	// journal goes on.
	Detached string
}

// Free reports whether nobody leads, so that a replica may take over without waiting.
func (h Head) Free() bool { return h.Owner == ID{} }

// Position returns the position after the last entry.
func (h Head) Position() Position { return Position{Seq: h.Seq, Chain: h.Chain} }

// Position is how far somebody has applied a journal: the number of the last applied entry, and the chain after it. The zero
// Position is before the first entry.
type Position struct {
	Seq   uint64
	Chain Chain
}

// Entry is an entry of a journal.
type Entry struct {
	// Seq is the entry's number, Term the term of the leader that appended it.
	Seq, Term uint64
	// ID was drawn for this append.
	ID ID
	// Before is the chain before the entry.
	Before Chain
	// Time is the time of the group in Unix µs. It is at least that of the entry before.
	Time int64
	// Payload is what the replicas apply. The journal does not look inside it.
	Payload []byte
}
