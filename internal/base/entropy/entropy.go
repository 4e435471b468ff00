// Package entropy is where the program draws random numbers: ids, jitter, choices among equals.
//
//	deps.Random.Named("blobs").Read(id[:])
//
// Roles get a [Source] from the process that they run in. The nil Source is the machine's randomness, as in production; a simulation gives
// each process one that follows from a seed. Seeds of hash tables are not drawn here: nobody sees what they decide.
package entropy

import (
	"cmp"
	cryptorand "crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"math/rand/v2"
	"sync"
	"time"
)

// Source is a source of random numbers. Nil and the zero Source are the machine: crypto/rand for bytes and texts, which must be unique
// everywhere, and math/rand/v2 for the rest. A Source is safe for concurrent use. It is a [rand.Source].
type Source struct {
	// numbers is nil for the machine.
	numbers *lockedSource
	// seed derives the seeds of named sources, where the source has one.
	seed   [sha256.Size]byte
	seeded bool
}

// lockedSource makes a source safe for concurrent use.
type lockedSource struct {
	sync.Mutex
	of rand.Source
}

// Uint64 returns the next number.
func (l *lockedSource) Uint64() uint64 {
	l.Lock()
	defer l.Unlock()
	return l.of.Uint64()
}

// NewSeeded returns a source that follows from a seed and a name.
func NewSeeded(seed uint64, name string) *Source {
	return newDerived(binary.LittleEndian.AppendUint64(nil, seed), name)
}

func newDerived(seed []byte, name string) *Source {
	s := &Source{seed: sha256.Sum256(append(seed, name...)), seeded: true}
	s.numbers = &lockedSource{of: rand.NewChaCha8(s.seed)}
	return s
}

// FromSource returns a source that draws from another one: itself if it is a Source, nil for no source at all.
func FromSource(of rand.Source) *Source {
	if of == nil {
		return nil
	}
	if s, ok := of.(*Source); ok {
		return cmp.Or(s, new(Source))
	}
	return &Source{numbers: &lockedSource{of: of}}
}

// Named returns a source whose numbers do not depend on who else draws from s. It is s itself, unless s follows from a seed. Sources of the
// same name give the same numbers: take each name once.
func (s *Source) Named(name string) *Source {
	if s == nil || !s.seeded {
		return s
	}
	return newDerived(s.seed[:], name)
}

// Uint64 returns a number.
func (s *Source) Uint64() uint64 {
	if s == nil || s.numbers == nil {
		return rand.Uint64()
	}
	return s.numbers.Uint64()
}

// Float64 returns a number in [0, 1).
func (s *Source) Float64() float64 { return float64(s.Uint64()>>11) / (1 << 53) }

// IntN returns a number in [0, n). It panics if n is not above 0.
func (s *Source) IntN(n int) int { return s.rand().IntN(n) }

// Duration returns a duration in [0, n). It panics if n is not above 0.
func (s *Source) Duration(n time.Duration) time.Duration {
	return time.Duration(s.rand().Int64N(int64(n)))
}

// Shuffle puts n elements in a random order.
func (s *Source) Shuffle(n int, swap func(i, j int)) { s.rand().Shuffle(n, swap) }

func (s *Source) rand() *rand.Rand {
	return rand.New(s) //nolint:gosec // what must be unguessable is read as bytes
}

// Read fills b with random bytes. It never fails: the process ends when the system has no randomness.
func (s *Source) Read(b []byte) {
	if s == nil || s.numbers == nil {
		_, _ = cryptorand.Read(b)
		return
	}
	var word [8]byte
	for len(b) > 0 {
		binary.LittleEndian.PutUint64(word[:], s.numbers.Uint64())
		b = b[copy(b, word[:]):]
	}
}

// Text returns 26 random characters, A to Z and 2 to 7, with at least 128 bits of entropy, as [cryptorand.Text] does.
func (s *Source) Text() string {
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
	text := make([]byte, 26)
	s.Read(text)
	for i, b := range text {
		text[i] = alphabet[b%32]
	}
	return string(text)
}
