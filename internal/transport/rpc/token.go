package rpc

import (
	"encoding/base64"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
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
	source := TokenSource(func(*url.URL) string { return text })
	defaultTokens.source.Store(&source)
}

// SetTokens makes the transport send tokens with its requests.
func (t *Transport) SetTokens(source TokenSource) { t.tokens.source.Store(&source) }

// SetToken makes the transport send one token with all requests; "" is for none.
func (t *Transport) SetToken(text string) {
	if text != "" {
		t.SetTokens(func(*url.URL) string { return text })
	}
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
