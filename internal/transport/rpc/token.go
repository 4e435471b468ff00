package rpc

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"scribe/internal/base/logthrottle"
)

// TokenSource returns the token to send to a base URL, or "" for none.
type TokenSource func(to *url.URL) string

// tokenHolder has a transport's source of tokens.
type tokenHolder struct{ source atomic.Pointer[heldTokens] }

// heldTokens is a source of tokens, and whether somebody renews them.
type heldTokens struct {
	of      TokenSource
	renewed bool
}

// held returns the source to use, the transport's own or the default one; nil if there is none.
func (h *tokenHolder) held() *heldTokens {
	if own := h.source.Load(); own != nil {
		return own
	}
	return defaultTokens.source.Load()
}

// defaultTokens is the source of transports that have none of their own.
var defaultTokens tokenHolder

// SetDefaultToken gives a token to every transport without a source of its own. It is for programs, which set it once, before they
// call anybody; libraries take tokens as options.
func SetDefaultToken(text string) {
	defaultTokens.source.Store(&heldTokens{of: func(*url.URL) string { return text }})
}

// SetDefaultTokens is SetDefaultToken with a source, of tokens that are renewed.
func SetDefaultTokens(source TokenSource) {
	defaultTokens.source.Store(&heldTokens{of: source, renewed: true})
}

// tokenFileInterval is the least time between two looks at a file with a token, maxTokenFile bounds it.
const (
	tokenFileInterval = time.Second
	maxTokenFile      = 64 << 10 // no header is longer
)

// FileTokens returns the token in a file, which may be replaced while the program runs: tokens of issuers end soon, and somebody else renews them. Without a token in it, such as
// while it is replaced, the former one counts, and the log says so. At first there must be one.
func FileTokens(path string, log *slog.Logger) (TokenSource, error) {
	text, err := readTokenFile(path)
	if err != nil {
		return nil, err
	}
	f := &tokenFile{path: path, log: log}
	f.text.Store(&text)
	f.looked.Store(time.Now().UnixNano())
	return f.token, nil
}

// tokenFile is the token in a file.
type tokenFile struct {
	path string
	text atomic.Pointer[string]
	// looked is when the file was read, in Unix nanoseconds. Whoever moves it forward reads; the others use what there is.
	looked atomic.Int64

	log *slog.Logger
	// reading is held while the file is read: a slow disk may take longer than tokenFileInterval.
	reading  sync.Mutex
	throttle logthrottle.Throttle
}

func (f *tokenFile) token(*url.URL) string {
	now, looked := time.Now().UnixNano(), f.looked.Load()
	since := time.Duration(now - looked)
	if (since < 0 || since >= tokenFileInterval) && f.looked.CompareAndSwap(looked, now) {
		f.read()
	}
	return *f.text.Load()
}

// read takes the token that the file has now.
func (f *tokenFile) read() {
	if !f.reading.TryLock() {
		return
	}
	defer f.reading.Unlock()
	text, err := readTokenFile(f.path)
	if err != nil {
		f.throttle.Failed(context.Background(), f.log, "the file with the token can't be read: the former token is sent", "file", f.path, "error", err)
		return
	}
	f.throttle.Recovered(context.Background(), f.log, "the file with the token can be read again", "file", f.path)
	f.text.Store(&text)
}

func readTokenFile(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }() // it was only read
	text, err := ReadToken(f)
	if err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	return text, nil
}

// ReadToken returns the text of the token that r has, and nothing else but space.
func ReadToken(r io.Reader) (string, error) {
	text, err := io.ReadAll(io.LimitReader(r, maxTokenFile+1))
	if err != nil {
		return "", err
	}
	token := strings.TrimSpace(string(text))
	if token == "" || len(text) > maxTokenFile {
		return "", fmt.Errorf("there is no token: want one, of at most %d bytes", maxTokenFile)
	}
	return token, nil
}

// SetTokens makes the transport send tokens with its requests.
func (t *Transport) SetTokens(source TokenSource) { t.tokens.source.Store(&heldTokens{of: source}) }

// RenewsTokens reports whether somebody renews the tokens that the transport sends: then a call that is refused since the token has ended may succeed later.
func (t *Transport) RenewsTokens() bool {
	held := t.tokens.held()
	return held != nil && held.renewed
}

// SetToken makes the transport send one token with all requests; "" is for none.
func (t *Transport) SetToken(text string) {
	if text != "" {
		t.SetTokens(func(*url.URL) string { return text })
	}
}

// SetTokenFile makes the transport send the token in a file with all requests; "" is for none.
func (t *Transport) SetTokenFile(path string, log *slog.Logger) error {
	if path == "" {
		return nil
	}
	source, err := FileTokens(path, log)
	if err == nil {
		t.tokens.source.Store(&heldTokens{of: source, renewed: true})
	}
	return err
}

// authorizationHeader carries tokens.
const authorizationHeader = "Authorization"

// bearer is the scheme of tokens.
const bearer = "Bearer "

// authorize adds the token to a request that has none.
func (h *tokenHolder) authorize(r *http.Request) {
	held := h.held()
	if held == nil || r.Header.Get(authorizationHeader) != "" {
		return
	}
	if text := held.of(r.URL); text != "" {
		r.Header.Set(authorizationHeader, bearer+text)
	}
}

// basic is the scheme of names and passwords, for clients that know no other.
const basic = "Basic "

// AuthorizationToken returns the token in the value of an Authorization header: a bearer's, or the password beside any name.
func AuthorizationToken(header string) (text string, ok bool) {
	if rest, ok := cutScheme(header, bearer); ok {
		return strings.TrimSpace(rest), true
	}
	rest, ok := cutScheme(header, basic)
	if !ok {
		return "", false
	}
	pair, err := base64.StdEncoding.DecodeString(strings.TrimSpace(rest))
	if err != nil {
		return "", false
	}
	_, text, ok = strings.Cut(string(pair), ":")
	return text, ok
}

func cutScheme(header, scheme string) (rest string, ok bool) {
	if len(header) < len(scheme) || !strings.EqualFold(header[:len(scheme)], scheme) {
		return "", false
	}
	return header[len(scheme):], true
}
