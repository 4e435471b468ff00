package rpc

import (
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"time"
)

// TokenSource returns the token to send to a base URL, or "" for none.
type TokenSource func(to *url.URL) string

// tokenHolder has a transport's source of tokens.
type tokenHolder struct{ source atomic.Pointer[TokenSource] }

// defaultTokens is the source of transports that have none of their own.
var defaultTokens tokenHolder

// SetDefaultToken gives a token to every transport without a source of its own. It is for programs, which set it once, before they
// call anybody; libraries take tokens as options.
func SetDefaultToken(text string) {
	SetDefaultTokens(func(*url.URL) string { return text })
}

// SetDefaultTokens is SetDefaultToken with a source, of tokens that are renewed.
func SetDefaultTokens(source TokenSource) { defaultTokens.source.Store(&source) }

// tokenFileInterval is the least time between two looks at a file with a token, maxTokenFile bounds it.
const (
	tokenFileInterval = time.Second
	maxTokenFile      = 64 << 10 // no header is longer
)

// FileTokens returns the token in a file, which may be replaced while the program runs: tokens of issuers end soon, and somebody else renews them. Without a token in it, such as
// while it is replaced, the former one counts. At first there must be one.
func FileTokens(path string) (TokenSource, error) {
	text, err := readTokenFile(path)
	if err != nil {
		return nil, err
	}
	f := &tokenFile{path: path}
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
}

func (f *tokenFile) token(*url.URL) string {
	now, looked := time.Now().UnixNano(), f.looked.Load()
	since := time.Duration(now - looked)
	if (since < 0 || since >= tokenFileInterval) && f.looked.CompareAndSwap(looked, now) {
		if text, err := readTokenFile(f.path); err == nil {
			f.text.Store(&text)
		}
	}
	return *f.text.Load()
}

func readTokenFile(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }() // it was only read
	text, err := io.ReadAll(io.LimitReader(f, maxTokenFile+1))
	if err != nil {
		return "", err
	}
	token := strings.TrimSpace(string(text))
	if token == "" || len(text) > maxTokenFile {
		return "", fmt.Errorf("%s has no token: want one, of at most %d bytes", path, maxTokenFile)
	}
	return token, nil
}

// SetTokens makes the transport send tokens with its requests.
func (t *Transport) SetTokens(source TokenSource) { t.tokens.source.Store(&source) }

// SetToken makes the transport send one token with all requests; "" is for none.
func (t *Transport) SetToken(text string) {
	if text != "" {
		t.SetTokens(func(*url.URL) string { return text })
	}
}

// SetTokenFile makes the transport send the token in a file with all requests; "" is for none.
func (t *Transport) SetTokenFile(path string) error {
	if path == "" {
		return nil
	}
	source, err := FileTokens(path)
	if err == nil {
		t.SetTokens(source)
	}
	return err
}

// authorizationHeader carries tokens.
const authorizationHeader = "Authorization"

// bearer is the scheme of tokens.
const bearer = "Bearer "

// authorize adds the token to a request that has none.
func (h *tokenHolder) authorize(r *http.Request) {
	source := h.source.Load()
	if source == nil {
		source = defaultTokens.source.Load()
	}
	if source == nil || r.Header.Get(authorizationHeader) != "" {
		return
	}
	if text := (*source)(r.URL); text != "" {
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
