package otlp

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"
	collectorv1 "go.opentelemetry.io/proto/slim/otlp/collector/logs/v1"
	"google.golang.org/genproto/googleapis/rpc/errdetails"

	"scribe/internal/base/units"
	"scribe/scribed/inputs"
	"scribe/scribed/inputs/inputstest"
)

// served runs an input on a free port.
func served(t *testing.T, a *agent, adjust func(*Config)) (i *Input, address string) {
	t.Helper()
	i = input(t, a, adjust)
	nl, err := i.cfg.Listen.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- i.cfg.Listen.ServeHTTP(ctx, nl, i.handler(), func() {}) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return i, nl.Addr().String()
}

// exporter is a gRPC client over HTTP/2 without TLS.
func exporter(t *testing.T, address string, options ...connect.ClientOption) func(*collectorv1.ExportLogsServiceRequest) (*collectorv1.ExportLogsServiceResponse, error) {
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: &protocols}
	t.Cleanup(transport.CloseIdleConnections)
	c := connect.NewClient[collectorv1.ExportLogsServiceRequest, collectorv1.ExportLogsServiceResponse](
		&http.Client{Transport: transport}, "http://"+address+grpcMethod, append(options, connect.WithGRPC())...)
	return func(req *collectorv1.ExportLogsServiceRequest) (*collectorv1.ExportLogsServiceResponse, error) {
		resp, err := c.CallUnary(t.Context(), connect.NewRequest(req))
		if err != nil {
			return nil, err
		}
		return resp.Msg, nil
	}
}

func TestGRPC(t *testing.T) {
	a := &agent{}
	i, address := served(t, a, func(c *Config) { c.MaxRecord = 5 })
	for name, options := range map[string][]connect.ClientOption{"plain": nil, "gzip": {connect.WithSendGzip()}} {
		resp, err := exporter(t, address, options...)(request("shop", texts("one", "too long")...))
		if err != nil || resp.GetPartialSuccess().GetRejectedLogRecords() != 1 {
			t.Fatalf("%s: %v, %v", name, resp, err)
		}
	}
	if want := []string{"otel.shop:one", "otel.shop:one"}; !slices.Equal(a.payloads(), want) || counted(i.metrics.Refused) != nil {
		t.Fatalf("%q", a.payloads())
	}
}

func TestGRPCRefusals(t *testing.T) {
	for name, c := range map[string]struct {
		err     error
		busy    bool
		req     *collectorv1.ExportLogsServiceRequest
		options []connect.ClientOption
		code    connect.Code
		reason  string
	}{
		"no room":   {err: errors.New("full"), code: connect.CodeUnavailable, reason: "full"},
		"busy":      {busy: true, code: connect.CodeUnavailable, reason: "busy"},
		"too large": {req: request("s", texts(strings.Repeat("x", 2<<10))...), code: connect.CodeResourceExhausted, reason: "too_large"},
		"bomb": {
			req: request("s", texts(strings.Repeat("x", 2<<10))...), options: []connect.ClientOption{connect.WithSendGzip()},
			code: connect.CodeResourceExhausted, reason: "too_large",
		},
		"not protobuf": {options: []connect.ClientOption{connect.WithCodec(nonsense{})}, code: connect.CodeInvalidArgument, reason: "invalid"},
	} {
		t.Run(name, func(t *testing.T) {
			i, address := served(t, &agent{err: c.err}, func(cfg *Config) { cfg.MaxRequest, cfg.MaxRequests = 1<<10, 1 })
			if c.busy {
				i.running.TryAcquire(1)
			}
			if c.req == nil {
				c.req = request("s", texts("x")...)
			}
			_, err := exporter(t, address, c.options...)(c.req)
			if connect.CodeOf(err) != c.code {
				t.Fatalf("%v, want %v", err, c.code)
			}
			// Exporters send again what is unavailable, when RetryInfo says; nothing else.
			var retry *errdetails.RetryInfo
			if e := new(connect.Error); errors.As(err, &e) {
				for _, d := range e.Details() {
					if v, derr := d.Value(); derr == nil {
						retry, _ = v.(*errdetails.RetryInfo)
					}
				}
			}
			if got := retry.GetRetryDelay().AsDuration(); (got > 0) != (c.code == connect.CodeUnavailable) {
				t.Fatalf("to be sent again after %v", got)
			}
			if !is(i.metrics.Refused.WithLabelValues(c.reason), 1) || !is(i.metrics.Refused, 1) {
				t.Fatalf("not counted as %s: %v", c.reason, counted(i.metrics.Refused))
			}
		})
	}
}

// nonsense is a codec that sends what is no protobuf.
type nonsense struct{ boundedCodec }

func (nonsense) Marshal(any) ([]byte, error) { return []byte("\x0a\xff"), nil }

// A request holds its place while it is delivered, and no longer.
func TestBoundsRequests(t *testing.T) {
	inside, leave := make(chan struct{}), make(chan struct{})
	a := &agent{enter: func() { inside <- struct{}{}; <-leave }}
	i := input(t, a, func(c *Config) { c.MaxRequests = 1 })
	var first sync.WaitGroup
	first.Go(func() { post(t, i, typeJSON, "", strings.NewReader(example)) })
	<-inside
	if w := post(t, i, typeJSON, "", strings.NewReader(example)); w.Code != http.StatusTooManyRequests {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	close(leave)
	first.Wait()
	go func() { <-inside }()
	if w := post(t, i, typeJSON, "", strings.NewReader(example)); w.Code != http.StatusOK {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
}

// A client that announces a body and does not send it gives its place back.
func TestSilentClient(t *testing.T) {
	i, address := served(t, &agent{}, func(c *Config) { c.Patience = units.Duration(20 * time.Millisecond) })
	c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	if _, err := io.WriteString(c, "POST /v1/logs HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"); err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(c) // until the server closes
	idle := i.running.TryAcquire(int64(i.cfg.MaxRequests))
	if err != nil || !strings.Contains(string(answer), " 400 ") || !idle {
		t.Fatalf("%s (%v), idle: %v", answer, err, idle)
	}
}

// A delivery may take longer than a body may stand still: the request is answered.
func TestPatienceIsOverWithTheBody(t *testing.T) {
	a := &agent{enter: func() { <-time.After(60 * time.Millisecond) }}
	_, address := served(t, a, nil)
	_, quick := served(t, a, func(c *Config) { c.Patience = units.Duration(30 * time.Millisecond) })
	for addr, want := range map[string]int{address: http.StatusOK, quick: http.StatusServiceUnavailable} {
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+addr+"/v1/logs", strings.NewReader(example))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", typeJSON)
		res, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if res.StatusCode != want {
			t.Fatalf("%s", res.Status)
		}
	}
}

func TestRun(t *testing.T) {
	reg := prometheus.NewRegistry()
	cfg := DefaultConfig()
	cfg.Listen.Address = "127.0.0.1:0"
	i, err := New(cfg, inputs.Deps{Registerer: reg})
	if err != nil || i.Name() != "otlp" {
		t.Fatal(err)
	}
	// Twice: it leaves nothing behind, not even its metrics.
	for range 2 {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		open := make(chan struct{})
		go func() { done <- i.Run(ctx, inputstest.NewProducer(t, (&agent{}).Deliver), func() { close(open) }) }()
		<-open
		cancel()
		if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		if families, err := reg.Gather(); err != nil || len(families) != 0 {
			t.Fatalf("%v, %v", families, err)
		}
	}
	nl, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = nl.Close() }()
	i.cfg.Listen.Address = nl.Addr().String()
	closed := func() { t.Error("it is open") }
	if err := i.Run(t.Context(), inputstest.NewProducer(t, (&agent{}).Deliver), closed); err == nil || strings.Count(err.Error(), "otlp otlp: ") != 1 {
		t.Fatalf("a busy port: %v", err)
	}
	i.cfg.Listen = inputs.ListenConfig{Address: "127.0.0.1:0", TokenFile: t.TempDir() + "/none"}
	if err := i.Run(t.Context(), inputstest.NewProducer(t, (&agent{}).Deliver), closed); !errors.Is(err, os.ErrNotExist) || !strings.HasPrefix(err.Error(), "otlp otlp: ") {
		t.Fatalf("a token that is not there: %v", err)
	}
}
