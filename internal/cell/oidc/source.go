package oidc

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/json"

	"scribe/internal/base/durable"
	"scribe/internal/base/logthrottle"
	"scribe/internal/transport/tlsfiles"
)

// keySource has the issuer's keys, and fetches them in run, one fetch after the other.
type keySource struct {
	cfg      Config
	accepted []jose.SignatureAlgorithm
	log      *slog.Logger
	client   *http.Client
	fsys     vfs.FS
	// file keeps the last answer; empty = none does.
	file string

	current atomic.Pointer[keySet] // nil until there are some
	// asked has a value while somebody waits for the next fetch.
	asked chan struct{}
	// tried is closed after the first fetch.
	tried chan struct{}
	now   func() time.Time

	fetches, failures atomic.Uint64
	fetched           atomic.Int64 // when the last one succeeded, in Unix seconds; 0 before

	mu struct {
		sync.Mutex
		// next is the fetch that has not begun, for which some wait; nil if nobody does.
		next    *fetch
		waiting int
		// failed is why the last fetch did; nil if it did not, or before the first.
		failed error
		since  time.Time
	}
}

// fetch is one fetch of keys. err is set before done is closed.
type fetch struct {
	done chan struct{}
	err  error
}

func newKeySource(cfg Config, deps Deps) (*keySource, error) {
	s := &keySource{cfg: cfg, accepted: cfg.accepted(), log: deps.Logger, fsys: deps.FS, asked: make(chan struct{}, 1), tried: make(chan struct{}), now: deps.Now}
	transport := &http.Transport{
		Proxy: http.ProxyFromEnvironment, MaxIdleConns: 2, IdleConnTimeout: time.Minute, MaxResponseHeaderBytes: 64 << 10, ForceAttemptHTTP2: true,
	}
	if cfg.CA != "" {
		files, err := tlsfiles.Open(tlsfiles.Config{CA: cfg.CA}, tlsfiles.Deps{Logger: deps.Logger, Now: deps.Now})
		if err != nil {
			return nil, fmt.Errorf("--oidc-ca: %w", err)
		}
		transport.TLSClientConfig = files.ClientConfig()
	}
	s.client = &http.Client{Transport: transport, CheckRedirect: func(r *http.Request, via []*http.Request) error {
		if len(via) >= 3 {
			return errors.New("too many redirections")
		}
		return checkURL(r.URL.String())
	}}
	if deps.File != "" {
		// Keys of another issuer, or from elsewhere, are not for this one.
		sum := sha256.Sum256([]byte(cfg.Issuer + "\x00" + cfg.Keys))
		s.file = deps.File + "-" + hex.EncodeToString(sum[:6])
		s.readCopy()
	}
	return s, nil
}

// readCopy takes the keys that a former process has kept.
func (s *keySource) readCopy() {
	f, err := s.fsys.Open(s.file)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	var set *keySet
	if err == nil {
		var answer []byte
		if answer, err = readBounded(f); err == nil {
			set, err = parseKeys(answer, s.accepted)
		}
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		s.log.Warn("the copy of the issuer's keys can't be used", "file", s.file, "error", err)
		return
	}
	s.current.Store(set)
}

// run fetches keys until ctx ends: at once, every Refresh, and when they are asked for, with RefetchEvery between two.
func (s *keySource) run(ctx context.Context) {
	var throttle logthrottle.Throttle
	defer s.client.CloseIdleConnections()
	defer s.abandon()
	for first := true; ; first = false {
		s.fetchKeys(ctx, &throttle)
		if first {
			close(s.tried)
		}
		pause := time.NewTimer(s.cfg.RefetchEvery)
		select {
		case <-ctx.Done():
			pause.Stop()
			return
		case <-pause.C:
		}
		refresh := time.NewTimer(s.refreshAfter())
		select {
		case <-ctx.Done():
			refresh.Stop()
			return
		case <-s.asked:
		case <-refresh.C:
		}
		refresh.Stop()
	}
}

// refreshAfter is when keys are fetched that nobody asks for: sooner while that fails.
func (s *keySource) refreshAfter() time.Duration {
	if s.err() != nil {
		return min(s.cfg.Refresh, max(s.cfg.RefetchEvery, 5*time.Second))
	}
	return s.cfg.Refresh
}

// fetchKeys fetches keys for all who have asked until now. Those who ask from now on want a later fetch: the issuer may have answered already.
func (s *keySource) fetchKeys(ctx context.Context, throttle *logthrottle.Throttle) {
	// Before the lock: who asks after it waits for the next one, and its value must stay.
	select {
	case <-s.asked:
	default:
	}
	s.mu.Lock()
	begun := s.mu.next
	s.mu.next, s.mu.waiting = nil, 0
	s.mu.Unlock()
	set, err := s.fetchSet(ctx)
	s.fetches.Add(1)
	if ctx.Err() != nil {
		s.finish(begun, context.Cause(ctx))
		return
	}
	if err != nil {
		s.failures.Add(1)
		throttle.Failed(ctx, s.log, "the keys of the issuer can't be fetched: those that are known go on", "issuer", s.cfg.Issuer, "keys", s.current.Load().count(), "error", err)
	} else {
		throttle.Recovered(ctx, s.log, "the keys of the issuer are fetched again", "issuer", s.cfg.Issuer, "keys", set.count())
		s.fetched.Store(s.now().Unix())
		s.replace(ctx, set)
	}
	s.mu.Lock()
	if err != nil && s.mu.failed == nil {
		s.mu.since = s.now()
	}
	s.mu.failed = err
	s.mu.Unlock()
	s.finish(begun, err)
}

// replace makes a set the current one.
func (s *keySource) replace(ctx context.Context, set *keySet) {
	former := s.current.Load()
	if former != nil && bytes.Equal(former.answer, set.answer) {
		return
	}
	set.takeOver(former)
	s.current.Store(set)
	s.log.InfoContext(ctx, "the issuer has other keys", "issuer", s.cfg.Issuer, "keys", set.count(), "passed_over", set.passed)
	if s.file == "" {
		return
	}
	err := durable.ReplaceFile(s.fsys, s.file, func(w io.Writer) error {
		_, err := w.Write(set.answer)
		return err
	})
	if err != nil {
		s.log.WarnContext(ctx, "the issuer's keys can't be kept: without the issuer a restart has none", "file", s.file, "error", err)
	}
}

func (s *keySource) finish(f *fetch, err error) {
	if f != nil {
		f.err = err
		close(f.done)
	}
}

// abandon ends the fetch that will not begin.
func (s *keySource) abandon() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.finish(s.mu.next, errClosed)
	s.mu.next = &fetch{done: make(chan struct{}), err: errClosed}
	close(s.mu.next.done)
}

var (
	errClosed  = errors.New("the process is stopping")
	errWaiting = fmt.Errorf("%d requests wait for the issuer's keys already", maxWaiting)
)

// awaitFetch waits for a fetch that begins after the call. Its error means that nobody knows which keys there are now.
func (s *keySource) awaitFetch(ctx context.Context) error {
	s.mu.Lock()
	if s.mu.waiting >= maxWaiting {
		s.mu.Unlock()
		return errWaiting
	}
	if s.mu.next == nil {
		s.mu.next = &fetch{done: make(chan struct{})}
	}
	f := s.mu.next
	s.mu.waiting++
	s.mu.Unlock()
	select {
	case s.asked <- struct{}{}:
	default: // it is asked for
	}
	limit := time.NewTimer(s.cfg.RefetchEvery + 2*s.cfg.Timeout) // the one that runs, the pause, and this one
	defer limit.Stop()
	select {
	case <-f.done:
		return f.err
	case <-limit.C:
		return fmt.Errorf("no answer within %v", s.cfg.RefetchEvery+2*s.cfg.Timeout)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// err returns why the keys are not current; nil if they are.
func (s *keySource) err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.failed == nil {
		return nil
	}
	return fmt.Errorf("the keys of %s can't be fetched since %s, and the %d that are known go on: %w",
		s.cfg.Issuer, s.mu.since.UTC().Format(time.RFC3339), s.current.Load().count(), s.mu.failed)
}

// fetchSet reads the keys from where they are.
func (s *keySource) fetchSet(ctx context.Context) (*keySet, error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	var answer []byte
	var err error
	switch {
	case s.cfg.Keys == "":
		var at string
		if at, err = s.discover(ctx); err == nil {
			answer, err = s.get(ctx, at)
		}
	case isURL(s.cfg.Keys):
		answer, err = s.get(ctx, s.cfg.Keys)
	default:
		var f *os.File
		if f, err = os.Open(s.cfg.Keys); err == nil {
			answer, err = readBounded(f)
			err = errors.Join(err, f.Close())
		}
	}
	if err != nil {
		return nil, err
	}
	return parseKeys(answer, s.accepted)
}

// discover returns where the issuer's discovery document says that its keys are.
func (s *keySource) discover(ctx context.Context) (string, error) {
	at := strings.TrimSuffix(s.cfg.Issuer, "/") + "/.well-known/openid-configuration"
	answer, err := s.get(ctx, at)
	if err != nil {
		return "", err
	}
	keys, err := parseDiscovery(answer, s.cfg.Issuer)
	if err != nil {
		return "", fmt.Errorf("%s: %w", at, err)
	}
	return keys, nil
}

// parseDiscovery returns the URL of the keys in an issuer's discovery document.
func parseDiscovery(answer []byte, issuer string) (keys string, err error) {
	var doc struct {
		Issuer string `json:"issuer"`
		Keys   string `json:"jwks_uri"`
	}
	if err := json.Unmarshal(answer, &doc); err != nil {
		return "", fmt.Errorf("not a discovery document: %w", err)
	}
	if doc.Issuer != issuer {
		return "", fmt.Errorf("it is of the issuer %q, and --oidc-issuer is %q: they must be the same, also at their ends", shorten(doc.Issuer), issuer)
	}
	if err := checkURL(doc.Keys); err != nil {
		return "", fmt.Errorf("jwks_uri: %w", err)
	}
	return doc.Keys, nil
}

// get returns what is at a URL.
func (s *keySource) get(ctx context.Context, at string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at, http.NoBody)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/json")
	res, err := s.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answers %s", at, res.Status)
	}
	answer, err := readBounded(res.Body)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", at, err)
	}
	return answer, nil
}

// readBounded reads an answer whose length nobody vouches for.
func readBounded(r io.Reader) ([]byte, error) {
	answer, err := io.ReadAll(io.LimitReader(r, maxAnswer+1))
	if err == nil && len(answer) > maxAnswer {
		return nil, fmt.Errorf("it has more than %d bytes", maxAnswer)
	}
	return answer, err
}

// shorten bounds a text from outside in an error.
func shorten(text string) string {
	const most = 200
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "..."
}
