package lines

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strconv"

	"github.com/klauspost/compress/zstd"
	"github.com/prometheus/client_golang/prometheus"

	"scribe/internal/base/buffers"
	"scribe/internal/base/config"
	"scribe/internal/base/units"
	"scribe/internal/format/record"
	"scribe/producer"
	"scribe/scribed/inputs"
)

// Config bounds the requests of the input. Start from [DefaultConfig].
type Config struct {
	// Name is the input's name in metrics and logs.
	Name string `yaml:"name" default:"lines"`
	// Listen is the address of an input that does not share the agent's.
	Listen inputs.ListenConfig `yaml:"listen" check:"off"`
	// MaxBody bounds a body after decompression, MaxLine a line.
	MaxBody units.Bytes `yaml:"max_body" default:"1GiB" min:"MaxLine"`
	MaxLine units.Bytes `yaml:"max_line" default:"1MiB" min:"1B" max:"MaxMessageSize"`
	// MaxRequests bounds concurrent requests; each takes a buffer of a little more than MaxLine.
	MaxRequests int `yaml:"max_requests" default:"64" min:"1" max:"100000"`
	// Patience is how long a request waits for capacity in the agent, and how long its body may make no progress.
	Patience units.Duration `yaml:"patience" default:"10s" min:">0"`
}

// DefaultConfig returns a configuration without a listen address.
func DefaultConfig() Config { return config.Defaults[Config]() }

// Validate reports every violation of an input with an address of its own.
func (c *Config) Validate() error {
	v := c.checkLimits()
	v.Join("Listen", c.Listen.Validate())
	return v.Err()
}

// checkLimits checks the limits, which also apply to an input on the agent's address.
func (c *Config) checkLimits() *config.Violations {
	v := config.Check("lines "+c.Name, c, config.Bounds{"MaxMessageSize": record.DefaultMaxMessageSize})
	if record.ValidateCategory(c.Name) != nil {
		v.Add("Name", "invalid value %q: want letters, digits, '.', '_' and '-'", c.Name)
	}
	return v
}

// Deps are the dependencies of the input.
type Deps struct {
	// Logger receives the log; nil discards it.
	Logger *slog.Logger
	// Registerer receives the metrics; nil = none.
	Registerer prometheus.Registerer
}

// Pattern is the pattern of a [Handler] in an http.ServeMux.
const Pattern = "POST /v1/lines/{category}"

// Handler serves requests with lines. It is safe for concurrent use.
type Handler struct {
	cfg     Config
	agent   *producer.Producer
	metrics *inputs.NetworkMetrics
	buffers buffers.Pool
	running chan struct{} // a slot for each request
}

// NewHandler returns a handler that writes lines to the agent. The caller closes it.
func NewHandler(cfg Config, agent *producer.Producer, deps Deps) (*Handler, error) {
	if err := cfg.checkLimits().Err(); err != nil {
		return nil, err
	}
	m, err := inputs.NewNetworkMetrics("lines", cfg.Name, deps.Registerer)
	if err != nil {
		return nil, err
	}
	return &Handler{cfg: cfg, agent: agent, metrics: m, running: make(chan struct{}, cfg.MaxRequests)}, nil
}

// Close releases the metrics.
func (h *Handler) Close() { h.metrics.Unregister() }

// responseBody is the body of a response.
type responseBody struct {
	Accepted int    `json:"accepted"`
	Error    string `json:"error,omitempty"`
}

// httpError is an error with a status.
type httpError struct {
	status int
	err    error
}

func (f *httpError) Error() string { return f.err.Error() }

func newHTTPError(status int, format string, args ...any) *httpError {
	return &httpError{status, fmt.Errorf(format, args...)}
}

// retryAfter is the retry hint, in seconds.
const retryAfter = 1

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	accepted, fail := h.serveRequest(w, r)
	w.Header().Set("Content-Type", "application/json")
	a, status := responseBody{Accepted: accepted}, http.StatusOK
	if fail != nil {
		a.Error, status = fail.Error(), fail.status
		h.metrics.Refused.WithLabelValues(inputs.RefusalReason(status)).Inc()
		if status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable {
			w.Header().Set("Retry-After", strconv.Itoa(retryAfter))
		}
	}
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(a) // the client is gone
}

func (h *Handler) serveRequest(w http.ResponseWriter, r *http.Request) (accepted int, fail *httpError) {
	select {
	case h.running <- struct{}{}:
		defer func() { <-h.running }()
	default:
		return 0, newHTTPError(http.StatusTooManyRequests, "%d requests are being taken already: try again later", h.cfg.MaxRequests)
	}
	category := r.PathValue("category")
	if err := record.ValidateCategory(category); err != nil {
		return 0, newHTTPError(http.StatusBadRequest, "%w", err)
	}
	if r.ContentLength > int64(h.cfg.MaxBody) {
		return 0, newHTTPError(http.StatusRequestEntityTooLarge, "the body has %d bytes, the limit is %v: send less at once", r.ContentLength, h.cfg.MaxBody)
	}
	body, closeBody, fail := decompress(http.MaxBytesReader(w, inputs.NewPatientBody(w, r.Body, h.cfg.Patience.Std()), int64(h.cfg.MaxBody)), r.Header.Get("Content-Encoding"))
	if fail != nil {
		return 0, fail
	}
	defer closeBody()
	return h.writeLines(r.Context(), category, body)
}

// decompress decodes a content encoding.
func decompress(r io.Reader, encoding string) (body io.Reader, closeBody func(), fail *httpError) {
	switch encoding {
	case "", "identity":
		return r, func() {}, nil
	case "gzip":
		z, err := gzip.NewReader(r)
		if err != nil {
			return nil, nil, newHTTPError(http.StatusBadRequest, "the body is not gzip: %w", err)
		}
		return z, func() { _ = z.Close() }, nil
	case "zstd":
		z, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(8<<20))
		if err != nil {
			return nil, nil, newHTTPError(http.StatusBadRequest, "the body is not zstd: %w", err)
		}
		return z, z.Close, nil
	}
	return nil, nil, newHTTPError(http.StatusUnsupportedMediaType, "invalid Content-Encoding %q: want gzip, zstd or identity", encoding)
}

// writeLines reads a body in pieces and writes their lines to the agent.
func (h *Handler) writeLines(ctx context.Context, category string, body io.Reader) (accepted int, fail *httpError) {
	// Holds a line of the largest size with its end, as CRLF.
	buf := h.buffers.Get(int(h.cfg.MaxLine) + 64<<10)
	defer h.buffers.Put(buf)
	var (
		b        = buf.B
		held     int // bytes of the incomplete line
		total    int64
		messages []producer.Message
	)
	for ended := false; !ended; {
		n, err := io.ReadAtLeast(body, b[held:], 1)
		total += int64(n)
		held += n
		switch {
		case errors.Is(err, io.EOF):
			ended = true
		case err != nil:
			return accepted, readError(err)
		case total > int64(h.cfg.MaxBody):
			return accepted, newHTTPError(http.StatusRequestEntityTooLarge, "the body has more than %v: send less at once", h.cfg.MaxBody)
		}
		text := b[:held]
		messages = messages[:0]
		for {
			line, rest, complete := bytes.Cut(text, []byte{'\n'})
			if !complete && (!ended || len(text) == 0) {
				break
			}
			line = bytes.TrimSuffix(line, []byte{'\r'})
			if len(line) > int(h.cfg.MaxLine) {
				return h.tooLong(ctx, category, messages, accepted)
			}
			messages = append(messages, producer.Message{Payload: line})
			text = rest
		}
		if len(text) > int(h.cfg.MaxLine)+1 {
			return h.tooLong(ctx, category, messages, accepted)
		}
		if fail := h.writeMessages(ctx, category, messages); fail != nil {
			return accepted, fail
		}
		accepted += len(messages)
		held = copy(b, text)
	}
	return accepted, nil
}

// tooLong ends a request at a line over the limit, after delivering the lines before it.
func (h *Handler) tooLong(ctx context.Context, category string, before []producer.Message, accepted int) (int, *httpError) {
	if fail := h.writeMessages(ctx, category, before); fail != nil {
		return accepted, fail
	}
	accepted += len(before)
	return accepted, newHTTPError(http.StatusRequestEntityTooLarge, "line %d has more than %v", accepted+1, h.cfg.MaxLine)
}

func readError(err error) *httpError {
	if tooLarge := new(http.MaxBytesError); errors.As(err, &tooLarge) {
		return newHTTPError(http.StatusRequestEntityTooLarge, "the body has more than %v: send less at once", units.Bytes(tooLarge.Limit)) //nolint:gosec // not negative
	}
	return newHTTPError(http.StatusBadRequest, "the body can't be read: %w", err)
}

// writeMessages writes messages to the agent.
func (h *Handler) writeMessages(ctx context.Context, category string, messages []producer.Message) *httpError {
	if len(messages) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, h.cfg.Patience.Std())
	defer cancel()
	if err := h.agent.Write(ctx, category, messages...); err != nil {
		status := http.StatusServiceUnavailable
		if _, _, final := inputs.Refused(messages, err); final {
			status = http.StatusBadRequest
		}
		return newHTTPError(status, "category %s: %w", category, err)
	}
	h.metrics.CountTaken(messages, nil)
	return nil
}

// Input serves a [Handler] on an address of its own.
type Input struct {
	cfg  Config
	deps Deps
}

var _ inputs.Input = (*Input)(nil)

// New returns an input. It fails on an invalid configuration.
func New(cfg Config, deps Deps) (*Input, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if deps.Logger == nil {
		deps.Logger = slog.New(slog.DiscardHandler)
	}
	return &Input{cfg, deps}, nil
}

// Name implements inputs.Input.
func (i *Input) Name() string { return i.cfg.Name }

// Run implements inputs.Input.
func (i *Input) Run(ctx context.Context, agent *producer.Producer, open func()) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("lines %s: %w", i.cfg.Name, err)
		}
	}()
	h, err := NewHandler(i.cfg, agent, i.deps)
	if err != nil {
		return err
	}
	defer h.Close()
	nl, err := i.cfg.Listen.Open(ctx)
	if err != nil {
		return err
	}
	i.deps.Logger.Info("taking lines", "input", i.cfg.Name, "address", nl.Addr().String())
	mux := http.NewServeMux()
	mux.Handle(Pattern, h)
	return i.cfg.Listen.ServeHTTP(ctx, nl, mux, open)
}
