package otlp

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	collectorv1 "go.opentelemetry.io/proto/slim/otlp/collector/logs/v1"
	"golang.org/x/sync/semaphore"

	"scribe/producer"
	"scribe/scribed/inputs"
)

// Input is an inputs.Input.
type Input struct {
	cfg      Config
	deps     inputs.Deps
	category inputs.CategoryTemplate
	names    *inputs.CategoryLimit
	running  *semaphore.Weighted

	metrics *inputs.NetworkMetrics // while it runs
	agent   *producer.Producer
}

var _ inputs.Input = (*Input)(nil)

// New returns an input. It fails on an invalid configuration.
func New(cfg Config, deps inputs.Deps) (*Input, error) {
	t, err := cfg.compile()
	if err != nil {
		return nil, err
	}
	return &Input{
		cfg: cfg, deps: deps.WithDefaults(cfg.Name), category: t, names: inputs.NewCategoryLimit(cfg.MaxCategories, cfg.Fallback),
		running: semaphore.NewWeighted(int64(cfg.MaxRequests)),
	}, nil
}

// Name implements inputs.Input.
func (i *Input) Name() string { return i.cfg.Name }

// Run implements inputs.Input.
func (i *Input) Run(ctx context.Context, agent *producer.Producer, open func()) (err error) {
	defer inputs.NameError(&err, "otlp", i.cfg.Name)
	if i.metrics, err = inputs.NewNetworkMetrics("otlp", i.cfg.Name, i.deps.Registerer); err != nil {
		return err
	}
	defer i.metrics.Unregister()
	i.agent = agent
	nl, err := i.cfg.Listen.Open(ctx)
	if err != nil {
		return err
	}
	i.deps.Logger.Info("taking OTLP logs", "address", nl.Addr().String())
	return i.cfg.Listen.ServeHTTP(ctx, nl, i.handler(), open)
}

func (i *Input) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/logs", i.serveHTTP)
	mux.Handle("POST "+grpcMethod, i.serveGRPC())
	return mux
}

// errBusy says that too many requests are running.
var errBusy = errors.New("too many requests at the same time: try again later")

// writeRecords delivers a request's records and reports the lost ones; an error means that the request should be sent again.
func (i *Input) writeRecords(ctx context.Context, req *collectorv1.ExportLogsServiceRequest) (*collectorv1.ExportLogsServiceResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, i.cfg.Patience.Std())
	defer cancel()
	e := exportRequest{input: i, index: map[string]int{}, lost: map[string]int{}, convert: recordConverter{cfg: &i.cfg}}
	if err := e.writeAll(ctx, req); err != nil {
		i.metrics.CountRefused(http.StatusServiceUnavailable)
		return nil, err
	}
	resp := &collectorv1.ExportLogsServiceResponse{}
	rejected := 0
	// Counted only now: a request that is sent again would count them again.
	for reason, n := range e.lost {
		i.metrics.Dropped.WithLabelValues(reason).Add(float64(n))
		rejected += n
	}
	if rejected > 0 {
		resp.PartialSuccess = &collectorv1.ExportLogsPartialSuccess{RejectedLogRecords: int64(rejected), ErrorMessage: e.why.Error()}
		i.deps.Logger.WarnContext(ctx, "records dropped", "records", rejected, "error", e.why)
	}
	return resp, nil
}

// exportRequest is a request whose records are being delivered, by category, in order.
type exportRequest struct {
	input   *Input
	convert recordConverter
	parts   []categoryBatch
	index   map[string]int // of parts by category
	size    int            // memory of the messages in parts
	// lost counts records by reason; why is the first reason's error.
	lost map[string]int
	why  error
}

type categoryBatch struct {
	category string
	messages []producer.Message
}

// pieceBytes is how many bytes of a request are converted before they are delivered. Every record becomes a message with the
// attributes of its resource, so a small request may become many bytes.
const pieceBytes = 1 << 20

func (e *exportRequest) writeAll(ctx context.Context, req *collectorv1.ExportLogsServiceRequest) error {
	for _, rl := range req.GetResourceLogs() {
		s := e.convert.newSource(rl.GetResource().GetAttributes())
		for _, sl := range rl.GetScopeLogs() {
			e.convert.setScope(&s, sl.GetScope().GetName(), sl.GetScope().GetAttributes())
			for _, r := range sl.GetLogRecords() {
				m, cut, err := e.convert.convertRecord(&s, r)
				if err != nil {
					e.countLost(inputs.DropTooLarge, 1, err)
					continue
				}
				if cut {
					e.input.metrics.Truncated.Inc()
				}
				e.addToCategory(e.input.categoryOf(&s, severityOf(r)), m)
				if e.size < pieceBytes {
					continue
				}
				if err := e.writeBatches(ctx); err != nil {
					return err
				}
			}
		}
	}
	return e.writeBatches(ctx)
}

func (i *Input) categoryOf(s *recordSource, severity string) string {
	if name, ok := i.category.Fixed(); ok {
		return name
	}
	name, ok := i.names.Allow(i.category.Category(func(field string) string {
		switch field {
		case fieldService:
			return s.service
		case fieldNamespace:
			return s.namespace
		}
		return severity
	}))
	if !ok {
		i.metrics.Stray.Inc()
	}
	return name
}

func (e *exportRequest) addToCategory(category string, m producer.Message) {
	n, known := e.index[category]
	if !known {
		n = len(e.parts)
		e.index[category] = n
		e.parts = append(e.parts, categoryBatch{category: category})
	}
	e.parts[n].messages = append(e.parts[n].messages, m)
	e.size += sizeOf(&m)
}

// sizeOf estimates a message's memory in bytes.
func sizeOf(m *producer.Message) int {
	n := 128 + len(m.Payload)
	for i := range m.Attributes {
		n += 64 + len(m.Attributes[i].Name) + len(m.Attributes[i].Value)
	}
	return n
}

func (e *exportRequest) countLost(reason string, n int, err error) {
	e.lost[reason] += n
	if e.why == nil {
		e.why = err
	}
}

// writeBatches writes the collected messages to the agent.
func (e *exportRequest) writeBatches(ctx context.Context) error {
	for i := range e.parts {
		p := &e.parts[i]
		err := e.input.agent.Write(ctx, p.category, p.messages...)
		lost, final := e.input.metrics.CountWrite(p.messages, err)
		if !final {
			return fmt.Errorf("category %s: %w", p.category, err)
		}
		if lost > 0 {
			e.countLost(inputs.DropRefused, lost, fmt.Errorf("category %s: %w", p.category, err))
		}
	}
	clear(e.index)
	e.parts, e.size = e.parts[:0], 0
	return nil
}
