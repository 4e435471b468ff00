package tlsfiles

import (
	"errors"
	"fmt"
)

// Config names the files of a process, all in PEM. Empty ones are not used.
type Config struct {
	// Cert has the process's certificate and the intermediate ones after it, Key the key.
	Cert string `yaml:"tls_cert" flag:"tls-cert,up,serve,agent" help:"file with the certificate of this process: it serves with TLS then, and proves to others who it is"`
	Key  string `yaml:"tls_key" flag:"tls-key,up,serve,agent" help:"file with the key of --tls-cert"`
	// CA has the authorities whose certificates servers must have; empty = those of the machine.
	CA string `yaml:"tls_ca" flag:"tls-ca,up,serve,agent" help:"file with the authorities that sign the certificates of the processes that this one calls (default: those of this machine)"`
	// ClientCA has the authorities of clients' certificates. With it callers must prove who they are.
	ClientCA string `yaml:"tls_client_ca" flag:"tls-client-ca,up,serve,agent" help:"file with the authorities that sign clients' certificates: callers must prove who they are then (docs/security.md)"`
	// ServerName is the name that servers' certificates must have; empty = the host in the URL.
	ServerName string `yaml:"tls_server_name" flag:"tls-server-name,up,serve,agent" help:"name in the certificates of the processes that this one calls (default: the host of their URLs)"`
}

// Serves reports whether the process serves with TLS.
func (c *Config) Serves() bool { return c.Cert != "" }

// IsEmpty reports whether no file is named.
func (c *Config) IsEmpty() bool { return c.Cert+c.Key+c.CA+c.ClientCA == "" }

// Violations yields what is wrong with the configuration, by the name of the field, without looking at the files.
func (c *Config) Violations(report func(field, text string)) {
	switch {
	case c.Cert != "" && c.Key == "":
		report("Key", "missing: want the file of the key of tls_cert")
	case c.Cert == "" && c.Key != "":
		report("Cert", "missing: want the file of the certificate of tls_key")
	}
	if c.ClientCA != "" && !c.Serves() {
		report("Cert", "missing: only a process that serves with TLS can ask for clients' certificates")
	}
}

// Validate reports every violation.
func (c *Config) Validate() error {
	var errs []error
	c.Violations(func(field, text string) { errs = append(errs, fmt.Errorf("%s: %s", field, text)) })
	return errors.Join(errs...)
}
