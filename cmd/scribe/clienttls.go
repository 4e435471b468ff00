package main

import (
	"errors"
	"fmt"

	"github.com/spf13/pflag"

	"scribe/internal/transport/rpc"
	"scribe/internal/transport/tlsfiles"
)

// clientTLSKey is the annotation of the flags that say whom a client trusts, and who it is.
const clientTLSKey = "client tls"

// addClientTLS adds the flags of a command that calls a cell.
func addClientTLS(flags *pflag.FlagSet) {
	for _, f := range []struct{ name, variable, help string }{
		{"tls-ca", "SCRIBE_CA", "file with the authorities of servers' certificates, for https (default: those of this machine)"},
		{"tls-cert", "SCRIBE_CERT", "file with the certificate that proves to the cell who calls"},
		{"tls-key", "SCRIBE_KEY", "file with the key of --tls-cert"},
		{"tls-server-name", "SCRIBE_TLS_SERVER_NAME", "name in the servers' certificates (default: the host of --server)"},
	} {
		flags.String(f.name, "", fmt.Sprintf("%s (%s)", f.help, f.variable))
		setVariables(flags, f.name, f.variable)
		if err := flags.SetAnnotation(f.name, clientTLSKey, nil); err != nil {
			panic(err) // the flag was just made
		}
	}
}

// clientTLS returns what the flags of a command say; nothing for commands without these flags.
func clientTLS(flags *pflag.FlagSet) tlsfiles.Config {
	value := func(name string) string {
		f := flags.Lookup(name)
		if f == nil {
			return ""
		}
		if _, ok := f.Annotations[clientTLSKey]; !ok { // of a server
			return ""
		}
		return f.Value.String()
	}
	return tlsfiles.Config{CA: value("tls-ca"), Cert: value("tls-cert"), Key: value("tls-key"), ServerName: value("tls-server-name")}
}

// useClientTLS makes what a command calls go over TLS as its flags say.
func useClientTLS(flags *pflag.FlagSet) error {
	cfg := clientTLS(flags)
	switch {
	case cfg == tlsfiles.Config{}:
		return nil
	case cfg.Cert != "" && cfg.Key == "":
		return usageError(errors.New("--tls-cert needs --tls-key, the file of its key (SCRIBE_KEY)"))
	case cfg.Cert == "" && cfg.Key != "":
		return usageError(errors.New("--tls-key needs --tls-cert, the file of its certificate (SCRIBE_CERT)"))
	}
	files, err := tlsfiles.Open(cfg, tlsfiles.Deps{})
	if err != nil {
		return usageError(fmt.Errorf("TLS: %w", err))
	}
	rpc.SetProgramTLS(files)
	return nil
}
