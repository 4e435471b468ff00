package rpc

import "net/http"

// OverClient returns a transport over one HTTP client of the caller's, which brings TLS, authentication or tracing of its own. It
// must speak HTTP/2 to servers whose streams are called in both directions. The client stays the caller's to close.
func OverClient(hc *http.Client) *Transport {
	return &Transport{unary: namedClient{hc}, stream: namedClient{hc}, borrowed: true}
}
