package rpc

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
)

// unixSuffix marks a host name that encodes the path of a Unix socket, since a URL can't contain one.
const unixSuffix = ".unix-socket"

// hexPath encodes a socket's path as a host name. Host names are case-insensitive and allow few characters, hence hex.
func hexPath(path string) string { return hex.EncodeToString([]byte(path)) }

func pathFromHex(s string) (string, error) {
	b, err := hex.DecodeString(s)
	if err != nil {
		return "", fmt.Errorf("rpc: %q does not name a Unix socket: %w", s, err)
	}
	return string(b), nil
}

// readableURL formats a URL as the user wrote it.
func readableURL(u *url.URL) string {
	if name, ok := strings.CutSuffix(u.Hostname(), unixSuffix); ok {
		if path, err := pathFromHex(name); err == nil {
			return "unix:" + path + u.Path
		}
	}
	return u.Redacted()
}

// namedClient is an HTTP client whose errors name sockets by their paths, and whose requests have the transport's token.
type namedClient struct {
	*http.Client
	tokens *tokenHolder
}

// Do sends a request.
func (c namedClient) Do(req *http.Request) (*http.Response, error) {
	c.tokens.authorize(req)
	res, err := c.Client.Do(req)
	if named := new(url.Error); errors.As(err, &named) {
		named.URL = readableURL(req.URL)
	}
	if err == nil && needsTLS(res) {
		_ = res.Body.Close() // it was read
		return nil, &dialError{fmt.Errorf("the server at %s speaks TLS: use https:// for it, and give the file of its authority with --tls-ca (SCRIBE_CA)", req.URL.Host)}
	}
	return res, err
}

// httpsHint is in what net/http answers to a request without TLS where it expects a handshake.
const httpsHint = "HTTP request to an HTTPS server"

// needsTLS reports whether an answer is that of a server that expects TLS. No server has seen the request then.
func needsTLS(res *http.Response) bool {
	if res.StatusCode != http.StatusBadRequest || res.TLS != nil || res.ProtoMinor != 0 || len(res.Header) > 0 {
		return false
	}
	text, err := io.ReadAll(io.LimitReader(res.Body, 256))
	res.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(text), res.Body), res.Body}
	return err == nil && strings.Contains(string(text), httpsHint)
}
