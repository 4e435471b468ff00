package sqlserver

import (
	"io"
	"net/http"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// timedWriter writes to a client and fails if the client accepts no data for the timeout.
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
	return p.control.SetWriteDeadline(time.Now().Add(p.timeout))
}

func (p *timedWriter) flushClient() error {
	if err := p.extendDeadline(); err != nil {
		return err
	}
	return p.control.Flush()
}

// clearDeadline removes the deadline, for the next request on the connection. What remains of this answer still has a timeout.
func (p *timedWriter) clearDeadline() { _ = p.control.SetWriteDeadline(time.Time{}) }

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
