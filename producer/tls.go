package producer

import (
	"errors"
	"fmt"

	"scribe/internal/transport/rpc"
	"scribe/internal/transport/tlsfiles"
)

// TLS names files, all in PEM, for servers whose URLs say https. They are read again when they change.
type TLS struct {
	// CA has the authorities whose certificates servers must have; empty = those of the machine.
	CA string
	// Cert and Key are the certificate and the key that prove who the program is; empty = it has none.
	Cert, Key string
	// ServerName is the name that servers' certificates must have; empty = the host of their URLs.
	ServerName string
}

// WithTLS sets whom the producer trusts, and who it is. Without it URLs may say https as well: then the machine's authorities are trusted. [New]
// reports files that can't be used. It can't be combined with [WithHTTPClient].
func WithTLS(files TLS) Option { return func(c *producerConfig) { c.tls = &files } }

// openTransport makes the connections to the servers.
func (c *producerConfig) openTransport() (*rpc.Transport, error) {
	switch {
	case c.httpClient != nil && c.tls != nil:
		return nil, errors.New("producer: WithTLS and WithHTTPClient exclude each other: the client has its own TLS")
	case c.httpClient != nil:
		return rpc.OverClient(c.httpClient), nil
	case c.tls == nil:
		return rpc.NewTransport(nil), nil
	}
	files, err := tlsfiles.Open(tlsfiles.Config{CA: c.tls.CA, Cert: c.tls.Cert, Key: c.tls.Key, ServerName: c.tls.ServerName}, tlsfiles.Deps{Logger: c.logger})
	if err != nil {
		return nil, fmt.Errorf("producer: WithTLS: %w", err)
	}
	return rpc.NewTransport(nil, rpc.WithTLS(files)), nil
}
