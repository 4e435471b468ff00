package rsyslog

import (
	"bytes"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"

	"scribe/internal/testkit/sample"
)

// corpus is what is written: lines of a web server's log, each with its number in front.
type corpus [][]byte

func newCorpus(n int) corpus {
	log := bytes.Split(bytes.TrimSuffix(sample.AccessLog(), []byte{'\n'}), []byte{'\n'})
	c := make(corpus, n)
	for i := range c {
		c[i] = fmt.Appendf(nil, "%08d %s", i, log[i%len(log)])
	}
	return c
}

func (c corpus) bytes() (n int64) {
	for _, line := range c {
		n += int64(len(line))
	}
	return n
}

// header is that of a syslog message (RFC 5424) of one producer; its end is what text cuts at.
func header(producer int) string {
	return fmt.Sprintf("<134>1 2026-01-02T03:04:05.678000+00:00 host web %d - - ", producer)
}

// text is a line without the header of a syslog message, if it has one.
func text(line []byte) []byte {
	if len(line) > 0 && line[0] == '<' {
		_, line, _ = bytes.Cut(line, []byte(" - - "))
		line = bytes.TrimLeft(line, " ")
	}
	return line
}

// ledger notes which lines of a corpus have arrived.
type ledger struct {
	corpus corpus
	count  atomic.Int64
	mu     struct {
		sync.Mutex
		seen   []bool
		faults []string
	}
}

func newLedger(c corpus) *ledger {
	l := &ledger{corpus: c}
	l.mu.seen = make([]bool, len(c))
	return l
}

// maxFaults bounds what is said about lines that are not as they should be.
const maxFaults = 10

// note takes a line as it arrived.
func (l *ledger) note(line []byte) {
	line = text(line)
	defer l.count.Add(1) // whoever has seen it counted finds it noted
	l.mu.Lock()
	defer l.mu.Unlock()
	n, err := strconv.Atoi(string(line[:min(len(line), 8)]))
	switch {
	case err != nil || n < 0 || n >= len(l.corpus) || !bytes.Equal(line, l.corpus[n]):
		l.fault("a line that nobody has written: %q", line)
	case l.mu.seen[n]:
		l.fault("line %d arrived again", n)
	default:
		l.mu.seen[n] = true
	}
}

func (l *ledger) fault(format string, args ...any) {
	if len(l.mu.faults) < maxFaults {
		l.mu.faults = append(l.mu.faults, fmt.Sprintf(format, args...))
	}
}

// faults says what is not as it should be, when everything should have arrived.
func (l *ledger) faults() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	for n, seen := range l.mu.seen {
		if !seen {
			l.fault("line %d is missing", n)
		}
	}
	return l.mu.faults
}
