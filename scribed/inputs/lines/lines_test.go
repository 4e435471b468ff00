package lines

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"scribe/internal/transport/rpc"
	"scribe/producer"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/scribed/inputs"
	"scribe/scribed/inputs/inputstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// agent is one that keeps what it is given, and fails after a number of messages.
type agent struct {
	mu    sync.Mutex
	got   []string
	err   error
	after int
	enter func()
}

func (a *agent) Deliver(_ context.Context, category string, messages []producer.Message) error {
	if a.enter != nil {
		a.enter()
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.err != nil && len(a.got)+len(messages) > a.after {
		return a.err
	}
	for _, m := range messages {
		a.got = append(a.got, category+":"+string(m.Payload))
	}
	return nil
}

func handler(t *testing.T, a *agent, adjust func(*Config)) http.Handler {
	t.Helper()
	cfg := DefaultConfig()
	if adjust != nil {
		adjust(&cfg)
	}
	h, err := NewHandler(cfg, inputstest.NewProducer(t, a.Deliver), inputs.Deps{Registerer: prometheus.NewRegistry()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Close)
	mux := http.NewServeMux()
	mux.Handle(Pattern, h)
	return mux
}

func post(t *testing.T, h http.Handler, category, encoding string, body io.Reader) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/lines/"+category, body)
	if encoding != "" {
		r.Header.Set("Content-Encoding", encoding)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func TestLines(t *testing.T) {
	for encoding, encode := range map[string]func(string) []byte{
		"": func(s string) []byte { return []byte(s) },
		"gzip": func(s string) []byte {
			var b bytes.Buffer
			z := gzip.NewWriter(&b)
			_, _ = z.Write([]byte(s))
			_ = z.Close()
			return b.Bytes()
		},
		"zstd": func(s string) []byte { z, _ := zstd.NewWriter(nil); return z.EncodeAll([]byte(s), nil) },
	} {
		a := &agent{}
		w := post(t, handler(t, a, nil), "access", encoding, bytes.NewReader(encode("one\r\ntwo\n\nlast")))
		if w.Code != http.StatusOK || strings.TrimSpace(w.Body.String()) != `{"accepted":4}` {
			t.Fatalf("%q: %d %s", encoding, w.Code, w.Body)
		}
		if want := []string{"access:one", "access:two", "access:", "access:last"}; !slices.Equal(a.got, want) {
			t.Fatalf("%q: %q", encoding, a.got)
		}
	}
}

// Lines that cross the pieces in which a body is read stay whole.
func TestLargeBody(t *testing.T) {
	var body strings.Builder
	var want []string
	for i := range 20_000 {
		line := fmt.Sprintf("%d %s", i, strings.Repeat("x", i%300))
		want = append(want, "c:"+line)
		body.WriteString(line + "\n")
	}
	a := &agent{}
	h := handler(t, a, func(c *Config) { c.MaxLine = 400 })
	if w := post(t, h, "c", "", strings.NewReader(body.String())); w.Code != http.StatusOK {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	if !slices.Equal(a.got, want) {
		t.Fatalf("%d lines", len(a.got))
	}
}

func TestRefusals(t *testing.T) {
	for name, c := range map[string]struct {
		category, encoding, body string
		adjust                   func(*Config)
		err                      error
		status, accepted         int
		retry                    bool
	}{
		"bad name":         {category: ".hidden", body: "x\n", status: 400},
		"encoding":         {category: "c", encoding: "br", body: "x\n", status: 415},
		"not gzip":         {category: "c", encoding: "gzip", body: "plain", status: 400},
		"long line":        {category: "c", body: "ok\nok\n0123456789\n", adjust: func(c *Config) { c.MaxLine = 9 }, status: 413, accepted: 2},
		"long last line":   {category: "c", body: "ok\n0123456789", adjust: func(c *Config) { c.MaxLine = 9 }, status: 413, accepted: 1},
		"large body":       {category: "c", body: strings.Repeat("x\n", 100), adjust: func(c *Config) { c.MaxLine, c.MaxBody = 9, 100 }, status: 413},
		"no room":          {category: "c", body: "x\n", err: errors.New("full"), status: 503, retry: true},
		"refused for ever": {category: "c", body: "x\n", err: rpc.Errorf(scribev1.Reason_REASON_UNKNOWN_CATEGORY, "unknown category"), status: 400},
	} {
		t.Run(name, func(t *testing.T) {
			w := post(t, handler(t, &agent{err: c.err}, c.adjust), c.category, c.encoding, strings.NewReader(c.body))
			if w.Code != c.status || !strings.Contains(w.Body.String(), fmt.Sprintf(`"accepted":%d`, c.accepted)) || !strings.Contains(w.Body.String(), `"error"`) {
				t.Fatalf("%d %s", w.Code, w.Body)
			}
			if got := w.Header().Get("Retry-After") != ""; got != c.retry {
				t.Fatalf("retry %v", got)
			}
		})
	}
}

// A bomb of zeros is taken in pieces, up to the limit.
func TestBomb(t *testing.T) {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	for range 1000 {
		_, _ = z.Write(make([]byte, 1<<10))
	}
	_ = z.Close()
	h := handler(t, &agent{}, func(c *Config) { c.MaxLine, c.MaxBody = 1<<10, 100<<10 })
	if w := post(t, h, "c", "gzip", &b); w.Code != http.StatusRequestEntityTooLarge {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
}

func TestBoundsRequests(t *testing.T) {
	inside, leave := make(chan struct{}), make(chan struct{})
	a := &agent{enter: func() { inside <- struct{}{}; <-leave }}
	h := handler(t, a, func(c *Config) { c.MaxRequests = 1 })
	var first sync.WaitGroup
	first.Go(func() { post(t, h, "c", "", strings.NewReader("x\n")) })
	<-inside
	w := post(t, h, "c", "", strings.NewReader("y\n"))
	if w.Code != http.StatusTooManyRequests || w.Header().Get("Retry-After") == "" {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	close(leave)
	first.Wait()
}

// A refused request is answered, and its slot is free, although the client neither sends the rest of its body nor closes it.
func TestRefusalDoesNotWaitForTheBody(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Listen.Address, cfg.MaxLine = "127.0.0.1:0", 9
	h := handler(t, &agent{}, func(c *Config) { *c = cfg })
	nl, err := cfg.Listen.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- cfg.Listen.ServeHTTP(ctx, nl, h, func() {}) }()
	c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", nl.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(8 * time.Second))
	const size = 100 << 10
	if _, err := fmt.Fprintf(c, "POST /v1/lines/c HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", size+1, strings.Repeat("x", size)); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(c).ReadString('\n')
	if err != nil || !strings.Contains(line, " 413 ") {
		t.Errorf("%q, %v", line, err)
	}
	_ = c.Close()
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestInputWithToken(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Listen.Address = "127.0.0.1:0"
	cfg.Listen.TokenFile = filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(cfg.Listen.TokenFile, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	a := &agent{}
	h, err := NewHandler(cfg, inputstest.NewProducer(t, a.Deliver), inputs.Deps{})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	mux := http.NewServeMux()
	mux.Handle(Pattern, h)
	nl, err := cfg.Listen.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- cfg.Listen.ServeHTTP(ctx, nl, mux, func() {}) }()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for token, want := range map[string]int{"": 401, "wrong": 401, "secret": 200} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+nl.Addr().String()+"/v1/lines/c", strings.NewReader("x\n"))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+token)
		res, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if res.StatusCode != want {
			t.Errorf("token %q: %d", token, res.StatusCode)
		}
	}
	cancel()
	if err := <-done; err != nil || len(a.got) != 1 {
		t.Fatalf("%v, %q", err, a.got)
	}
}

func TestRunEndsWithItsContext(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Listen.Address = "127.0.0.1:0"
	i, err := New(cfg, inputs.Deps{Registerer: prometheus.NewRegistry()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	open := make(chan struct{})
	done := make(chan error, 1)
	go func() { done <- i.Run(ctx, inputstest.NewProducer(t, (&agent{}).Deliver), func() { close(open) }) }()
	<-open
	cancel()
	if err := <-done; err != nil || i.Name() != "lines" {
		t.Fatal(err)
	}
	i.cfg.Listen.TokenFile = t.TempDir() + "/none"
	if err := i.Run(t.Context(), inputstest.NewProducer(t, (&agent{}).Deliver), func() { t.Error("it is open") }); !errors.Is(err, os.ErrNotExist) || !strings.HasPrefix(err.Error(), "lines lines: ") {
		t.Errorf("a token that is not there: %v", err)
	}
}

func TestValidate(t *testing.T) {
	cfg := Config{Name: "a b", Listen: inputs.ListenConfig{Address: "nowhere", TLSCert: "x"}, MaxRequests: -1}
	err := cfg.Validate()
	if err == nil {
		t.Fatal("taken")
	}
	for _, want := range []string{"Name:", "MaxLine:", "MaxRequests:", "Patience:", "Listen.Address:", "Listen.TLSKey:"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("nothing of %s in %v", want, err)
		}
	}
}
