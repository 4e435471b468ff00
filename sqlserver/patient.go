package sqlserver

import (
	"io"
	"net/http"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// timedWriter writes to a client that must take something from time to time.
type timedWriter struct {
	w       http.ResponseWriter
	control *http.ResponseController
	timeout time.Duration
	bytes   int64
	stalled bool
}

func newTimedWriter(w http.ResponseWriter, timeout time.Duration) *timedWriter {
	return &timedWriter{w: w, control: http.NewResponseController(w), timeout: timeout}
}

// pieceBytes is what a client must take within the timeout.
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
	return p.control.SetWriteDeadline(time.Now().Add(p.timeout))
}

func (p *timedWriter) flushClient() error {
	if err := p.extendDeadline(); err != nil {
		return err
	}
	return p.control.Flush()
}

// clearDeadline leaves the connection as the next request should find it. What is left of this one has a timeout still.
func (p *timedWriter) clearDeadline() { _ = p.control.SetWriteDeadline(time.Time{}) }

// answerCompressor compresses an answer.
type answerCompressor interface {
	io.WriteCloser
	Flush() error
}

// encodings are what answers can be compressed with, the better one first.
var encodings = []string{"zstd", "gzip"}

// newCompressor returns a compressor: the fastest of its kind, since answers are made while they are read.
func newCompressor(encoding string, w io.Writer) answerCompressor {
	if encoding == "gzip" {
		z, _ := gzip.NewWriterLevel(w, gzip.BestSpeed) // the level is one that it has
		return z
	}
	z, _ := zstd.NewWriter(w, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(1<<20)) // valid options
	return z
}
