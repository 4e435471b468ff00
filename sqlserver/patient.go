package sqlserver

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// lastWordTimeout is how long a client may still take data of an answer that was ended by its server: enough for the error at its end.
const lastWordTimeout = time.Second

// timedWriter writes to a client and fails if the client accepts no data for the timeout, or soon after the answer was ended: a client that
// does not read would hold up a shutdown for the timeout.
type timedWriter struct {
	w       http.ResponseWriter
	control *http.ResponseController
	timeout time.Duration
	unwatch func() bool
	bytes   int64
	stalled bool

	mu struct {
		sync.Mutex
		// last is the deadline that no write moves any more; zero = none.
		last time.Time
		// detached means that the request may have ended: its deadline is that of the connection's next request, or of nothing.
		detached bool
	}
}

// newTimedWriter returns a writer for the answer whose life is ctx. The caller must call detach before its request ends.
func newTimedWriter(ctx context.Context, w http.ResponseWriter, timeout time.Duration) *timedWriter {
	p := &timedWriter{w: w, control: http.NewResponseController(w), timeout: timeout}
	p.unwatch = context.AfterFunc(ctx, func() {
		if cause := context.Cause(ctx); errors.Is(cause, errClosing) || isDenial(cause) || hasChanged(cause) {
			p.endSoon()
		}
	})
	return p
}

// endSoon bounds all that is still written, also a write that waits for the client now.
func (p *timedWriter) endSoon() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.detached {
		return
	}
	p.mu.last = time.Now().Add(lastWordTimeout)
	_ = p.control.SetWriteDeadline(p.mu.last) // without support for deadlines every write has failed
}

// detach ends the watch over the answer's life.
func (p *timedWriter) detach() {
	p.unwatch()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.detached = true
}

// noteStall reports whether a write failed since the client took nothing for the timeout, and notes it.
func (p *timedWriter) noteStall(err error) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if errors.Is(err, os.ErrDeadlineExceeded) && p.mu.last.IsZero() {
		p.stalled = true
		return true
	}
	return false
}

// pieceBytes is how much a client must accept within the timeout.
const pieceBytes = 64 << 10

// Write implements io.Writer.
func (p *timedWriter) Write(b []byte) (n int, err error) {
	for len(b) > 0 && err == nil {
		if err = p.extendDeadline(); err != nil {
			return n, err
		}
		var took int
		took, err = p.w.Write(b[:min(len(b), pieceBytes)])
		n += took
		p.bytes += int64(took)
		b = b[took:]
	}
	return n, err
}

func (p *timedWriter) extendDeadline() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.mu.last.IsZero() {
		return nil // it was set
	}
	return p.control.SetWriteDeadline(time.Now().Add(p.timeout))
}

func (p *timedWriter) flushClient() error {
	if err := p.extendDeadline(); err != nil {
		return err
	}
	return p.control.Flush()
}

// clearDeadline removes the deadline, for the next request on the connection. What remains of this answer still has a timeout.
func (p *timedWriter) clearDeadline() {
	p.detach()
	_ = p.control.SetWriteDeadline(time.Time{})
}

// answerEncoder compresses an answer, or leaves it as it is.
type answerEncoder interface {
	io.WriteCloser
	Flush() error
}

// encodings are the supported compressions of answers, in order of preference.
var encodings = []string{"zstd", "gzip"}

// newEncoder returns a compressor at its fastest level, since answers are compressed while they are read.
func newEncoder(encoding string, w io.Writer) answerEncoder {
	switch encoding {
	case "gzip":
		z, _ := gzip.NewWriterLevel(w, gzip.BestSpeed) // the level is valid
		return z
	case "zstd":
		z, _ := zstd.NewWriter(w, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(1<<20)) // valid options
		return z
	default:
		return identityEncoder{w}
	}
}

type identityEncoder struct{ io.Writer }

func (identityEncoder) Flush() error { return nil }
func (identityEncoder) Close() error { return nil }
