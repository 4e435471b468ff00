package tlsfiles

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"
)

// handshakeTimeout bounds a handshake.
const handshakeTimeout = 10 * time.Second

// clientConfig is the configuration of one connection to a host.
func (f *Files) clientConfig(host string, protocols ...string) *tls.Config {
	c := &tls.Config{ServerName: host, MinVersion: tls.VersionTLS12, NextProtos: protocols, DynamicRecordSizingDisabled: true}
	if f == nil {
		return c
	}
	m := f.latest()
	c.ServerName, c.RootCAs, c.Time = cmp.Or(f.cfg.ServerName, host), m.roots, f.now
	if !f.cfg.IsEmpty() {
		c.MinVersion = tls.VersionTLS13
	}
	// The certificate is given whatever authorities the server names: it says what is wrong with it.
	c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		if m.pair == nil {
			return new(tls.Certificate), nil
		}
		return m.pair, nil
	}
	return c
}

// ClientConfig returns a configuration for libraries that keep one: the certificate is read again, the authorities are those of now.
func (f *Files) ClientConfig() *tls.Config {
	c := f.clientConfig("")
	c.ServerName = f.cfg.ServerName
	c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		if pair := f.latest().pair; pair != nil {
			return pair, nil
		}
		return new(tls.Certificate), nil
	}
	return c
}

// Handshake makes a connection to a host one over TLS, for one of the protocols. It closes the connection if that fails, and its error says what
// to do. Nil files are the machine's authorities and no certificate.
func (f *Files) Handshake(ctx context.Context, raw net.Conn, host string, protocols ...string) (*tls.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	cfg := f.clientConfig(host, protocols...)
	c := tls.Client(raw, cfg)
	if err := c.HandshakeContext(ctx); err != nil {
		_ = raw.Close() // the handshake's error is the one that counts
		return nil, f.explain(err, cfg.ServerName, raw.RemoteAddr())
	}
	return c, nil
}

// explain says what a failed handshake means, and what to do.
func (f *Files) explain(err error, name string, at net.Addr) error {
	var header tls.RecordHeaderError
	var unknown x509.UnknownAuthorityError
	var wrong x509.HostnameError
	var invalid x509.CertificateInvalidError
	switch {
	case errors.As(err, &header):
		return fmt.Errorf("the server at %v does not speak TLS: use http:// for it, or start it with --tls-cert and --tls-key", at)
	case errors.As(err, &wrong):
		return fmt.Errorf("the certificate of the server at %v is for %s, not for %s: use one of its names in the URL, or say which one to expect with --tls-server-name (SCRIBE_TLS_SERVER_NAME): %w",
			at, namesOf(wrong.Certificate), name, err)
	case errors.As(err, &unknown):
		return fmt.Errorf("the certificate of the server at %v is signed by %s, which is not among %s: give the file of that authority with --tls-ca (SCRIBE_CA): %w",
			at, issuerOf(unknown.Cert), f.authorities(), err)
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return fmt.Errorf("the certificate of the server at %v is valid from %s to %s only: it needs a new one, or a clock is wrong: %w",
			at, invalid.Cert.NotBefore.UTC().Format(time.RFC3339), invalid.Cert.NotAfter.UTC().Format(time.RFC3339), err)
	}
	return fmt.Errorf("TLS with the server at %v: %w", at, err)
}

// authorities names where the authorities of servers come from.
func (f *Files) authorities() string {
	if f == nil || f.cfg.CA == "" {
		return "the authorities of this machine"
	}
	return "those in " + f.cfg.CA
}

func issuerOf(c *x509.Certificate) string {
	if c == nil {
		return "an authority"
	}
	return fmt.Sprintf("%q", c.Issuer.String())
}

// maxNames bounds the names in an error.
const maxNames = 8

// namesOf lists the names that a certificate is for.
func namesOf(c *x509.Certificate) string {
	names := append([]string(nil), c.DNSNames...)
	for _, ip := range c.IPAddresses {
		names = append(names, ip.String())
	}
	switch {
	case len(names) == 0:
		return "no host"
	case len(names) > maxNames:
		names = append(names[:maxNames], "...")
	}
	return strings.Join(names, ", ")
}
