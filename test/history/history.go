package history

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/cespare/xxhash/v2"
)

// Level is an acknowledgement level.
type Level uint8

// Levels, from the weakest.
const (
	// None means that a process has the message in memory.
	None Level = 1
	// Spooled means that the message is on the host's disk, or committed.
	Spooled Level = 2
	// Committed means that every reader can see the message.
	Committed Level = 3
)

// Guarantees are the guarantees for a category's messages.
type Guarantees struct {
	// ExactlyOnce means that no message occurs twice, and that each writer's messages are in its order.
	ExactlyOnce bool
	// ByKey, if set, means that messages are placed by their keys, and reports whether those of a key may be in a logical shard. Then, for
	// readers with a strict order, each writer's messages of a key are in its order, as far as they were acknowledged as committed; with
	// ExactlyOnce at any level.
	ByKey func(key string, shard uint32) bool
	// NoGivingUp means that the writers retry a write until it is acknowledged, so no message is ever missing before a later one of
	// the same writer, and key. It is for ExactlyOnce categories whose writers each write to one shard, or by key.
	NoGivingUp bool
}

// ID identifies a message: the index-th of its writer's source. The writer's name has no space.
type ID struct {
	Writer string
	Index  int
}

// String returns "writer index".
func (id ID) String() string { return id.Writer + " " + strconv.Itoa(id.Index) }

// Message is a message to be written. The payload begins with the ID: see Payload.
type Message struct {
	ID      ID
	Payload []byte
	// Key is what a category with ByKey places the message by; "" in others.
	Key string
}

// Payload returns a payload of about size bytes for a message. Where a message may be written twice, rng must yield the same bytes for
// the same ID. A part of the payload compresses well, as logs do.
func Payload(id ID, size int, rng *rand.Rand) []byte {
	b := append(make([]byte, 0, size+32), id.String()...)
	b = append(b, ' ')
	for len(b) < size {
		b = strconv.AppendUint(b, uint64(rng.Uint32()), 36)
		b = append(b, " GET /index.html 200 "...)
	}
	return b
}

// object is what a payload begins with that is a JSON object.
const object = `{"id":"`

// JSONPayload returns a payload that is an object: the field id has a payload as Payload makes it, then come other fields.
func JSONPayload(payload []byte, fields string) []byte {
	return append(append(append([]byte(object), payload...), `",`...), fields+"}"...)
}

// ParseID reads the ID that a payload begins with.
func ParseID(payload []byte) (ID, error) {
	payload = bytes.TrimPrefix(payload, []byte(object))
	writer, rest, ok := bytes.Cut(payload[:min(len(payload), 200)], []byte{' '})
	number, _, ok2 := bytes.Cut(rest, []byte{' '})
	index, err := strconv.Atoi(string(number))
	if !ok || !ok2 || err != nil || len(writer) == 0 {
		return ID{}, fmt.Errorf("payload %.60q does not begin with an id", payload)
	}
	return ID{Writer: string(writer), Index: index}, nil
}

// History holds the writes, and the outcomes that writers know. It is safe for concurrent use.
type History struct {
	mu struct {
		sync.Mutex
		// now counts events, which orders calls, acknowledgements and readings.
		now        int64
		batches    int
		categories map[string]*categoryHistory
		// skew is in microseconds; see AllowSkew.
		skew int64
	}
}

// categoryHistory is the part of one category.
type categoryHistory struct {
	guarantees Guarantees
	messages   map[ID]*writtenMessage
	// positions are the messages that the last reading saw, by position.
	positions map[position]messageDigest
	// origin is where logs may begin, or later, if it is not 0; see Origin.
	origin uint64
	// retention has the changes of the retention in order.
	retention []retentionChange
}

// writtenMessage is the state of a message. Times are values of History.mu.now; 0 = not yet.
type writtenMessage struct {
	id     ID
	digest uint64
	shard  uint32
	key    string

	invoked   int64
	committed int64           // when it was first acknowledged as committed
	acked     map[Level]int64 // when it was first acknowledged at each level
	attempts  int
	failed    int // attempts that definitely failed
	// uncertain is set when a recovery of the metadata took it for committed, which nobody knew.
	uncertain bool

	// batch is the atomic batch that the message belongs to, at batchIndex of batchSize messages; 0 = none.
	batch, batchIndex, batchSize int
}

// position is the permanent position of a message.
type position struct {
	shard uint64
	lsn   uint64
	index int
}

// messageDigest identifies the message at a position and its bytes.
type messageDigest struct {
	id     ID
	digest uint64
}

// New returns an empty history.
func New() *History {
	h := new(History)
	h.mu.categories = map[string]*categoryHistory{}
	return h
}

// Category declares a category, before anything is written to it.
func (h *History) Category(name string, g Guarantees) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.mu.categories[name] = &categoryHistory{guarantees: g, messages: map[ID]*writtenMessage{}, positions: map[position]messageDigest{}}
}

// AllowSkew notes how far clocks of the cell may be from the clock of the test, or from each other: retention may remove a message that much
// earlier.
func (h *History) AllowSkew(most time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.mu.skew = most.Microseconds()
}

// Origin notes that a recovery of the metadata may let logs begin at an LSN from least on, instead of at the first one.
func (h *History) Origin(least uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range h.mu.categories {
		if c.origin == 0 {
			c.origin = least
		}
	}
}

// Uncertain notes a message that a recovery of the metadata kept although nothing showed that its blob was committed. It may be there even
// if every attempt to write it failed.
func (h *History) Uncertain(category string, id ID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if m := h.mu.categories[category].messages[id]; m != nil {
		m.uncertain = true
	}
}

// Attempt is a write that has begun. One goroutine calls its methods.
type Attempt struct {
	h    *History
	msgs []*writtenMessage
	told []bool
}

// Begin notes that messages are about to be written to a shard. A message without a reported outcome may be readable or not.
func (h *History) Begin(category string, shard uint32, msgs ...Message) *Attempt {
	return h.beginAttempt(category, shard, false, msgs)
}

// BeginAtomic is Begin for the messages of an atomic batch.
func (h *History) BeginAtomic(category string, shard uint32, msgs ...Message) *Attempt {
	return h.beginAttempt(category, shard, true, msgs)
}

func (h *History) beginAttempt(name string, shard uint32, atomic bool, msgs []Message) *Attempt {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.mu.now++
	h.mu.batches++
	c := h.mu.categories[name]
	a := &Attempt{h: h, msgs: make([]*writtenMessage, len(msgs)), told: make([]bool, len(msgs))}
	for i, in := range msgs {
		m := c.messages[in.ID]
		if m == nil {
			m = &writtenMessage{id: in.ID, digest: xxhash.Sum64(in.Payload), shard: shard, key: in.Key, invoked: h.mu.now, acked: map[Level]int64{}}
			if atomic {
				m.batch, m.batchIndex, m.batchSize = h.mu.batches, i, len(msgs)
			}
			c.messages[in.ID] = m
		} else if m.digest != xxhash.Sum64(in.Payload) || m.shard != shard || m.key != in.Key {
			panic(fmt.Sprintf("history: the test writes %v again with other bytes, or elsewhere", in.ID))
		}
		m.attempts++
		a.msgs[i] = m
	}
	return a
}

// Acked notes that the i-th message was acknowledged.
func (a *Attempt) Acked(i int, level Level) {
	a.recordOutcome(i, func(m *writtenMessage, now int64) {
		if m.acked[level] == 0 {
			m.acked[level] = now
		}
		if level == Committed && m.committed == 0 {
			m.committed = now
		}
	})
}

// Failed notes that the i-th message has definitely failed.
func (a *Attempt) Failed(i int) {
	a.recordOutcome(i, func(m *writtenMessage, _ int64) { m.failed++ })
}

// ID returns the identifier of a message of the attempt.
func (a *Attempt) ID(i int) ID { return a.msgs[i].id }

func (a *Attempt) recordOutcome(i int, note func(m *writtenMessage, now int64)) {
	a.h.mu.Lock()
	defer a.h.mu.Unlock()
	if a.told[i] {
		panic(fmt.Sprintf("history: a second outcome of one attempt of %v", a.msgs[i].id))
	}
	a.told[i] = true
	a.h.mu.now++
	note(a.msgs[i], a.h.mu.now)
}

// Reading is the sequence of messages that a reader of a category gets. One goroutine calls its methods.
type Reading struct {
	category string
	began    int64
	seen     []readMessage
	// part means that the reading does not go to the end.
	part bool
}

type readMessage struct {
	position  position
	logical   uint32
	persisted int64
	content   messageDigest
	err       error // the payload says no id
}

func newReadMessage(payload []byte, logical uint32, at position, persisted int64) readMessage {
	id, err := ParseID(payload)
	return readMessage{position: at, logical: logical, persisted: persisted, content: messageDigest{id, xxhash.Sum64(payload)}, err: err}
}

// Read begins a reading of a category, from its beginning to its end.
func (h *History) Read(category string) *Reading {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.mu.now++
	return &Reading{category: category, began: h.mu.now}
}

// Record notes the next message that was delivered. The payload is not kept. Persisted is in Unix microseconds.
func (r *Reading) Record(payload []byte, logical uint32, shard, lsn uint64, index int, persisted int64) {
	r.seen = append(r.seen, newReadMessage(payload, logical, position{shard, lsn, index}, persisted))
}

// Row notes the next message without a position, which the reader of a columnar batch does not learn.
func (r *Reading) Row(payload []byte) { r.Record(payload, 0, 0, 0, 0, 0) }

// Len returns the number of delivered messages.
func (r *Reading) Len() int { return len(r.seen) }

// Hashes returns a hash of the bytes of each message (xxhash).
func (r *Reading) Hashes() map[ID]uint64 {
	hashes := make(map[ID]uint64, len(r.seen))
	for i := range r.seen {
		hashes[r.seen[i].content.id] = r.seen[i].content.digest
	}
	return hashes
}

// IDs returns the identifiers of the delivered messages, in the order of delivery.
func (r *Reading) IDs() []ID {
	ids := make([]ID, 0, len(r.seen))
	for _, m := range r.seen {
		ids = append(ids, m.content.id)
	}
	return ids
}
