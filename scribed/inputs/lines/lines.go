package lines

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"

	"golang.org/x/sync/semaphore"

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
	v := inputs.CheckConfig("lines", c.Name, c)
	v.Join("Listen", c.Listen.Validate())
	return v.Err()
}

// Pattern is the pattern of a [Handler] in an http.ServeMux.
const Pattern = "POST /v1/lines/{category}"

// Handler serves requests with lines. It is safe for concurrent use.
type Handler struct {
	cfg     Config
	agent   *producer.Producer
	metrics *inputs.NetworkMetrics
	buffers buffers.Pool
	running *semaphore.Weighted
}

// NewHandler returns a handler that writes lines to the agent. The caller closes it.
func NewHandler(cfg Config, agent *producer.Producer, deps inputs.Deps) (*Handler, error) {
	if err := inputs.CheckConfig("lines", cfg.Name, &cfg).Err(); err != nil { // a shared address is not checked here
		return nil, err
	}
	m, err := inputs.NewNetworkMetrics("lines", cfg.Name, deps.Registerer)
	if err != nil {
		return nil, err
	}
	return &Handler{cfg: cfg, agent: agent, metrics: m, running: semaphore.NewWeighted(int64(cfg.MaxRequests))}, nil
}

// Close releases the metrics.
func (h *Handler) Close() { h.metrics.Unregister() }

// responseBody is the body of a response.
type responseBody struct {
	Accepted int    `json:"accepted"`
	Error    string `json:"error,omitempty"`
}

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	accepted, fail := h.serveRequest(w, r)
	w.Header().Set("Content-Type", "application/json")
	a, status := responseBody{Accepted: accepted}, http.StatusOK
	if fail != nil {
		a.Error, status = fail.Err.Error(), fail.Status
		h.metrics.CountRefused(status)
		fail.SetRetryAfter(w.Header())
	}
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(a) // the client is gone
}

func (h *Handler) serveRequest(w http.ResponseWriter, r *http.Request) (accepted int, fail *inputs.HTTPError) {
	if !h.running.TryAcquire(1) {
		return 0, inputs.NewHTTPError(http.StatusTooManyRequests, "%d requests are being taken already: try again later", h.cfg.MaxRequests)
	}
	defer h.running.Release(1)
	category := r.PathValue("category")
	if err := record.ValidateCategory(category); err != nil {
		return 0, inputs.NewHTTPError(http.StatusBadRequest, "%w", err)
	}
	if r.ContentLength > int64(h.cfg.MaxBody) {
		return 0, inputs.NewHTTPError(http.StatusRequestEntityTooLarge, "the body has %d bytes, the limit is %v: send less at once", r.ContentLength, h.cfg.MaxBody)
	}
	body, fail := inputs.OpenBody(w, r, int64(h.cfg.MaxBody), h.cfg.Patience.Std(), "gzip", "zstd")
	if fail != nil {
		return 0, fail
	}
	defer func() { _ = body.Close() }() // it was only read
	return h.writeLines(r.Context(), category, body)
}

// writeLines reads a body in pieces and writes their lines to the agent.
func (h *Handler) writeLines(ctx context.Context, category string, body io.Reader) (accepted int, fail *inputs.HTTPError) {
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
			return accepted, inputs.NewHTTPError(http.StatusRequestEntityTooLarge, "the body has more than %v: send less at once", h.cfg.MaxBody)
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
				return h.endAtLongLine(ctx, category, messages, accepted)
			}
			messages = append(messages, producer.Message{Payload: line})
			text = rest
		}
		if len(text) > int(h.cfg.MaxLine)+1 {
			return h.endAtLongLine(ctx, category, messages, accepted)
		}
		if fail := h.writeMessages(ctx, category, messages); fail != nil {
			return accepted, fail
		}
		accepted += len(messages)
		held = copy(b, text)
	}
	return accepted, nil
}

// endAtLongLine ends a request at a line over the limit, after delivering the lines before it.
func (h *Handler) endAtLongLine(ctx context.Context, category string, before []producer.Message, accepted int) (int, *inputs.HTTPError) {
	if fail := h.writeMessages(ctx, category, before); fail != nil {
		return accepted, fail
	}
	accepted += len(before)
	return accepted, inputs.NewHTTPError(http.StatusRequestEntityTooLarge, "line %d has more than %v", accepted+1, h.cfg.MaxLine)
}

func readError(err error) *inputs.HTTPError {
	if tooLarge := new(http.MaxBytesError); errors.As(err, &tooLarge) {
		return inputs.NewHTTPError(http.StatusRequestEntityTooLarge, "the body has more than %v: send less at once", units.Bytes(tooLarge.Limit)) //nolint:gosec // not negative
	}
	return inputs.NewHTTPError(http.StatusBadRequest, "the body can't be read: %w", err)
}

// writeMessages writes messages to the agent.
func (h *Handler) writeMessages(ctx context.Context, category string, messages []producer.Message) *inputs.HTTPError {
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
		return inputs.NewHTTPError(status, "category %s: %w", category, err)
	}
	h.metrics.CountWrite(messages, nil)
	return nil
}

// Input serves a [Handler] on an address of its own.
type Input struct {
	cfg  Config
	deps inputs.Deps
}

var _ inputs.Input = (*Input)(nil)

// New returns an input. It fails on an invalid configuration.
func New(cfg Config, deps inputs.Deps) (*Input, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Input{cfg, deps.WithDefaults(cfg.Name)}, nil
}

// Name implements inputs.Input.
func (i *Input) Name() string { return i.cfg.Name }

// Run implements inputs.Input.
func (i *Input) Run(ctx context.Context, agent *producer.Producer, open func()) (err error) {
	defer inputs.NameError(&err, "lines", i.cfg.Name)
	h, err := NewHandler(i.cfg, agent, i.deps)
	if err != nil {
		return err
	}
	defer h.Close()
	nl, err := i.cfg.Listen.Open(ctx)
	if err != nil {
		return err
	}
	i.deps.Logger.Info("taking lines", "address", nl.Addr().String())
	mux := http.NewServeMux()
	mux.Handle(Pattern, h)
	return i.cfg.Listen.ServeHTTP(ctx, nl, mux, open)
}
