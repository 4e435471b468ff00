package oidc

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"strconv"
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
	// tls has the issuer's authorities; nil = those of the machine.
	tls  *tlsfiles.Files
	fsys vfs.FS
	// file keeps the last answer; empty = none does.
	file string

	current atomic.Pointer[keySet] // nil until there are some
	// asked has a value while somebody waits for the next fetch.
	asked chan struct{}
	// tried is closed after the first fetch.
	tried chan struct{}
	now   func() time.Time

	fetches, failures atomic.Uint64
	fetched           atomic.Int64 // when the last one succeeded, also in a former process, in Unix seconds; 0 before
	kept              int64        // what the copy says of that

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
	if cfg.CA != "" {
		var err error
		if s.tls, err = tlsfiles.Open(tlsfiles.Config{CA: cfg.CA}, tlsfiles.Deps{Logger: deps.Logger, Now: deps.Now}); err != nil {
			return nil, fmt.Errorf("--oidc-ca: %w", err)
		}
	}
	if deps.File != "" {
		// Keys of another issuer, or from elsewhere, are not for this one.
		sum := sha256.Sum256([]byte(cfg.Issuer + "\x00" + cfg.Keys))
		s.file = deps.File + "-" + hex.EncodeToString(sum[:6])
		s.readCopy()
	}
	return s, nil
}

// newClient returns a client for one fetch, with the authorities that the file has now. The issuer is somebody else's server: it may have no TLS 1.3.
func (s *keySource) newClient() *http.Client {
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, MaxIdleConns: 2, IdleConnTimeout: time.Minute, MaxResponseHeaderBytes: 64 << 10, ForceAttemptHTTP2: true}
	if s.tls != nil {
		transport.TLSClientConfig = s.tls.ClientConfig()
		transport.TLSClientConfig.MinVersion = tls.VersionTLS12
	}
	return &http.Client{Transport: transport, CheckRedirect: func(r *http.Request, via []*http.Request) error {
		if len(via) >= 3 {
			return errors.New("too many redirections")
		}
		return checkOnward(s.cfg.Issuer, r.URL.String())
	}}
}

// The copy of the keys: when they were fetched, in Unix seconds, a line feed, and the answer as the issuer gave it.

func encodeCopy(fetched int64, answer []byte) []byte {
	return append(strconv.AppendInt(nil, fetched, 10), append([]byte{'\n'}, answer...)...)
}

func parseCopy(text []byte, accepted []jose.SignatureAlgorithm) (fetched int64, set *keySet, err error) {
	head, answer, _ := bytes.Cut(text, []byte{'\n'})
	if fetched, err = strconv.ParseInt(string(head), 10, 64); err != nil {
		return 0, nil, fmt.Errorf("it does not say when the keys were fetched: %w", err)
	}
	set, err = parseKeys(answer, accepted)
	return fetched, set, err
}

// readCopy takes the keys that a former process has kept.
func (s *keySource) readCopy() {
	f, err := s.fsys.Open(s.file)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	var fetched int64
	var set *keySet
	if err == nil {
		var text []byte
		if text, err = readBounded(f); err == nil {
			fetched, set, err = parseCopy(text, s.accepted)
		}
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		s.log.Warn("the copy of the issuer's keys can't be used", "file", s.file, "error", err)
		return
	}
	fetched = min(fetched, s.now().Unix()) // a clock that was ahead does not lengthen their time
	s.kept = fetched
	s.fetched.Store(fetched)
	s.current.Store(set) // if it is too old, the first fetch that fails ends it
}

// isOutdated reports whether the keys were fetched so long ago that they no longer count: somebody may have withdrawn them since.
func (s *keySource) isOutdated() bool {
	return s.now().Sub(time.Unix(s.fetched.Load(), 0)) >= s.cfg.Keep
}

// run fetches keys until ctx ends: at once, every Refresh, and when they are asked for, with RefetchEvery between two.
func (s *keySource) run(ctx context.Context) {
	var throttle logthrottle.Throttle
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
		if set := s.current.Load(); set != nil && s.isOutdated() {
			new(keySet).takeOver(set)
			s.current.Store(nil)
			s.log.WarnContext(ctx, "the keys of the issuer could not be fetched for so long that they no longer count", "issuer", s.cfg.Issuer, "limit", s.cfg.Keep)
		}
		throttle.Failed(ctx, s.log, "the keys of the issuer can't be fetched: those that are known go on", "issuer", s.cfg.Issuer, "keys", s.current.Load().count(), "limit", s.cfg.Keep, "error", err)
	} else {
		throttle.Recovered(ctx, s.log, "the keys of the issuer are fetched again", "issuer", s.cfg.Issuer, "keys", set.count())
		s.fetched.Store(s.now().Unix())
		s.replace(ctx, set)
		s.keep(ctx)
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
	s.kept = 0
	s.log.InfoContext(ctx, "the issuer has other keys", "issuer", s.cfg.Issuer, "keys", set.count(), "passed_over", set.passed)
}

// keepShare is the part of Config.Keep after which a copy with the same keys is written anew, so that it says when they were fetched.
const keepShare = 24

// keep writes the copy of the keys, unless there is one of these that is young enough.
func (s *keySource) keep(ctx context.Context) {
	fetched := s.fetched.Load()
	if s.file == "" || s.kept != 0 && time.Duration(fetched-s.kept)*time.Second < s.cfg.Keep/keepShare {
		return
	}
	err := durable.ReplaceFile(s.fsys, s.file, func(w io.Writer) error {
		_, err := w.Write(encodeCopy(fetched, s.current.Load().answer))
		return err
	})
	if err != nil {
		s.log.WarnContext(ctx, "the issuer's keys can't be kept: a restart without the issuer has older ones or none", "file", s.file, "error", err)
		return
	}
	s.kept = fetched
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
	set := s.current.Load()
	switch {
	case s.mu.failed != nil:
		return fmt.Errorf("the keys of %s can't be fetched since %s, and the %d that are known go on for at most %v: %w",
			s.cfg.Issuer, s.mu.since.UTC().Format(time.RFC3339), set.count(), s.cfg.Keep, s.mu.failed)
	case set != nil && set.count() == 0:
		return fmt.Errorf("%s has no key for signatures by %v among its %d: its tokens prove nothing", s.cfg.Issuer, s.accepted, set.passed)
	}
	return nil
}

// fetchSet reads the keys from where they are.
func (s *keySource) fetchSet(ctx context.Context) (*keySet, error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	client := s.newClient()
	defer client.CloseIdleConnections()
	var answer []byte
	var err error
	switch {
	case s.cfg.Keys == "":
		var at string
		if at, err = s.discover(ctx, client); err == nil {
			answer, err = get(ctx, client, at)
		}
	case isURL(s.cfg.Keys):
		answer, err = get(ctx, client, s.cfg.Keys)
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
func (s *keySource) discover(ctx context.Context, client *http.Client) (string, error) {
	at := strings.TrimSuffix(s.cfg.Issuer, "/") + "/.well-known/openid-configuration"
	answer, err := get(ctx, client, at)
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
	if err := checkOnward(issuer, doc.Keys); err != nil {
		return "", fmt.Errorf("jwks_uri: %w", err)
	}
	return doc.Keys, nil
}

// get returns what is at a URL.
func get(ctx context.Context, client *http.Client, at string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at, http.NoBody)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/json")
	res, err := client.Do(req)
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
