package inputs

import (
	"context"
	"crypto/tls"
	"errors"
	"net"

	"scribe/internal/base/config"
)

// ListenConfig says where an input over TCP or HTTP listens, and who may write to it.
type ListenConfig struct {
	// Address is host:port; port 0 picks a free one. Anyone who can reach it can write: use loopback unless there is a token or
	// TLS.
	Address string `yaml:"address"`
	// TLSCert and TLSKey are PEM files; with them the input accepts only TLS.
	TLSCert string `yaml:"tls_cert"`
	TLSKey  string `yaml:"tls_key"`
	// TokenFile holds a token that HTTP requests must carry as "Authorization: Bearer TOKEN"; empty = no token needed.
	TokenFile string `yaml:"token_file"`
}

// Validate reports every violation.
func (l *ListenConfig) Validate() error {
	v := config.Check("listen", l, nil)
	if _, port, err := net.SplitHostPort(l.Address); err != nil || port == "" {
		v.Add("Address", "invalid value %q: want host:port", l.Address)
	}
	if l.TLSCert != "" && l.TLSKey == "" {
		v.Add("TLSKey", "missing: want the file of the key of tls_cert")
	}
	if l.TLSCert == "" && l.TLSKey != "" {
		v.Add("TLSCert", "missing: want the file of the certificate of tls_key")
	}
	return v.Err()
}

// Open listens on Address, with TLS if it is configured.
func (l *ListenConfig) Open(ctx context.Context) (net.Listener, error) {
	var lc net.ListenConfig
	nl, err := lc.Listen(ctx, "tcp", l.Address)
	if err != nil || l.TLSCert == "" {
		return nl, err
	}
	pair, err := tls.LoadX509KeyPair(l.TLSCert, l.TLSKey)
	if err != nil {
		return nil, errors.Join(err, nl.Close())
	}
	return tls.NewListener(nl, &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}}), nil
}
