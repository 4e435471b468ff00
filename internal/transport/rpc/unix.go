package rpc

import (
	"encoding/hex"
	"errors"
	"fmt"
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

// namedClient is an HTTP client whose errors name sockets by their paths.
type namedClient struct{ *http.Client }

// Do sends a request.
func (c namedClient) Do(req *http.Request) (*http.Response, error) {
	res, err := c.Client.Do(req)
	if named := new(url.Error); errors.As(err, &named) {
		named.URL = readableURL(req.URL)
	}
	return res, err
}
