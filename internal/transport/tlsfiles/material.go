package tlsfiles

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

// maxFile bounds a file in bytes. A bundle of a machine's authorities has 200 KiB.
const maxFile = 4 << 20

// contents are what the files of a configuration hold.
type contents struct{ cert, key, ca, clientCA []byte }

// readFiles reads the files of a configuration.
func readFiles(c *Config) (now contents, err error) {
	var errs []error
	for _, f := range []struct {
		path string
		into *[]byte
	}{{c.Cert, &now.cert}, {c.Key, &now.key}, {c.CA, &now.ca}, {c.ClientCA, &now.clientCA}} {
		if f.path == "" {
			continue
		}
		*f.into, err = readFile(f.path)
		errs = append(errs, err)
	}
	return now, errors.Join(errs...)
}

func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // the end of reading
	text, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("read %s: %w", path, err)
	case len(text) > maxFile:
		return nil, fmt.Errorf("%s has more than %d bytes: is that the right file?", path, maxFile)
	}
	return text, nil
}

func (c *contents) equal(o *contents) bool {
	return bytes.Equal(c.cert, o.cert) && bytes.Equal(c.key, o.key) && bytes.Equal(c.ca, o.ca) && bytes.Equal(c.clientCA, o.clientCA)
}

// material is what one state of the files gives. It does not change.
type material struct {
	contents
	// generation counts the states, from 1.
	generation uint64
	// pair is the process's certificate; nil without one.
	pair *tls.Certificate
	// roots are the authorities of servers, nil = the machine's; clients are those of clients' certificates, nil = none are asked for.
	roots, clients *x509.CertPool
	server         *tls.Config // nil without a certificate
}

// parse makes use of what the files hold.
func (c *contents) parse(cfg *Config, generation uint64, now time.Time) (*material, error) {
	m := &material{contents: *c, generation: generation}
	var errs [3]error
	if cfg.Cert != "" {
		m.pair, errs[0] = parsePair(cfg, c, now)
	}
	if cfg.CA != "" {
		m.roots, errs[1] = parseAuthorities(cfg.CA, c.ca)
	}
	if cfg.ClientCA != "" {
		m.clients, errs[2] = parseAuthorities(cfg.ClientCA, c.clientCA)
	}
	if err := errors.Join(errs[:]...); err != nil {
		return nil, err
	}
	if m.pair != nil {
		m.server = m.serverConfig()
	}
	return m, nil
}

func parsePair(cfg *Config, c *contents, now time.Time) (*tls.Certificate, error) {
	pair, err := tls.X509KeyPair(c.cert, c.key)
	switch {
	case err != nil && strings.Contains(err.Error(), "does not match"):
		return nil, fmt.Errorf("the key in %s is not that of the certificate in %s: want the two that were made together", cfg.Key, cfg.Cert)
	case err != nil:
		return nil, fmt.Errorf("certificate %s and key %s: %w", cfg.Cert, cfg.Key, err)
	}
	if err := checkTime(pair.Leaf, now); err != nil {
		return nil, fmt.Errorf("the certificate in %s %w: put a new one there", cfg.Cert, err)
	}
	return &pair, nil
}

// checkTime reports that a certificate is not valid at a time.
func checkTime(c *x509.Certificate, now time.Time) error {
	switch {
	case now.After(c.NotAfter):
		return fmt.Errorf("expired at %s", c.NotAfter.UTC().Format(time.RFC3339))
	case now.Before(c.NotBefore):
		return fmt.Errorf("is valid from %s on, and it is %s (is a clock wrong?)", c.NotBefore.UTC().Format(time.RFC3339), now.UTC().Format(time.RFC3339))
	}
	return nil
}

// parseAuthorities reads a file of authorities, any number of them.
func parseAuthorities(path string, text []byte) (*x509.CertPool, error) {
	pool, found := x509.NewCertPool(), false
	for {
		block, rest := pem.Decode(text)
		if block == nil {
			break
		}
		text = rest
		if block.Type != "CERTIFICATE" {
			return nil, fmt.Errorf("%s has a %s: want certificates of authorities only", path, block.Type)
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		pool.AddCert(c)
		found = true
	}
	if !found {
		return nil, fmt.Errorf("%s has no certificate in PEM", path)
	}
	return pool, nil
}

// serverConfig is the configuration of connections that a server accepts. A client's certificate is only asked for here: see VerifyClient.
func (m *material) serverConfig() *tls.Config {
	c := &tls.Config{
		Certificates: []tls.Certificate{*m.pair}, MinVersion: tls.VersionTLS13, NextProtos: []string{"h2", "http/1.1"},
		// A session that was resumed would prove what a certificate was worth earlier. Connections last long; a handshake is rare.
		SessionTicketsDisabled: true,
		// Small records first are for pages in a browser.
		DynamicRecordSizingDisabled: true,
	}
	if m.clients != nil {
		c.ClientAuth = tls.RequestClientCert
	}
	return c
}
