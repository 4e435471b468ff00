package rpc

import "net/http"

// OverClient returns a transport over the caller's HTTP client, which may add TLS, authentication or tracing. It must use HTTP/2
// with servers whose streams are bidirectional. The caller remains responsible for closing it.
func OverClient(hc *http.Client) *Transport {
	return &Transport{unary: namedClient{hc}, stream: namedClient{hc}, borrowed: true}
}
