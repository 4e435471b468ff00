package main

import (
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"scribe/cmd/scribe/app"
	"scribe/internal/transport/certificates"
	"scribe/internal/transport/principal"
)

const day = 24 * time.Hour

// authorityDays is how long authorities are valid.
const authorityDays = 3650

func newCert() *cobra.Command {
	return newParent(&cobra.Command{
		Use:   "cert",
		Short: "Make certificates for a cell whose people have no authority of their own",
		Long: `Make certificates for a cell whose people have no authority of their own, and show what is in certificates.

An authority ("scribe cert ca") signs those of the cell's processes and of hosts' agents ("scribe cert server"), and those of programs and people
("scribe cert client"). Certificates of any other authority do as well: docs/security.md says what has to be in them. Files are PEM, keys are readable
by their owner alone, and nothing is overwritten. Keep the authority's key off the machines of the cell.`,
		Example: `  scribe cert ca
  scribe cert server n1 --host n1.example.net,10.0.0.1
  scribe cert nodes --cluster n1=10.0.0.1:7420,n2=10.0.0.2:7420,n3=10.0.0.3:7420
  scribe cert client ada --kind operator
  scribe up --tls-cert certs/n1.pem --tls-key certs/n1.key --tls-ca certs/ca.pem --tls-client-ca certs/ca.pem`,
	}, newCertAuthority(), newCertNodes(), newCertServer(), newCertClient(), newCertShow())
}

// certFlags are common to the commands that make certificates.
type certFlags struct {
	dir           string
	days          int
	caCert, caKey string
	kind, spiffe  string
	hosts         []string
}

func (f *certFlags) addFlags(cmd *cobra.Command, days int) {
	cmd.Flags().StringVar(&f.dir, "dir", "certs", "folder of the files")
	cmd.Flags().IntVar(&f.days, "days", days, "how many days the certificate is valid")
}

// addIssuer adds the flags of certificates that an authority signs.
func (f *certFlags) addIssuer(cmd *cobra.Command, kind, kinds string) {
	fs := cmd.Flags()
	fs.StringVar(&f.caCert, "ca-cert", "", "file with the authority's certificate (default: ca.pem in --dir)")
	fs.StringVar(&f.caKey, "ca-key", "", "file with the authority's key (default: ca.key in --dir)")
	fs.StringVar(&f.kind, "kind", kind, "what its owner is: "+kinds)
	fs.StringVar(&f.spiffe, "spiffe", "", "SPIFFE id to put in as well, spiffe://DOMAIN/PATH")
}

// lifetime is how long certificates are valid.
func (f *certFlags) lifetime() (time.Duration, error) {
	const most = 100 * 365
	if f.days < 1 || f.days > most {
		return 0, usageError(fmt.Errorf("invalid value %d for --days: want 1 to %d", f.days, most))
	}
	return time.Duration(f.days) * day, nil
}

// write writes a pair, and says where.
func (f *certFlags) write(cmd *cobra.Command, name string, pair certificates.Pair) error {
	if err := os.MkdirAll(f.dir, 0o755); err != nil { //nolint:gosec // certificates are for everybody; keys have a mode of their own
		return err
	}
	certFile, keyFile := filepath.Join(f.dir, name+".pem"), filepath.Join(f.dir, name+".key")
	if err := pair.Write(certFile, keyFile); err != nil {
		return err
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "wrote %s and %s, valid for %s\n", certFile, keyFile, countText(f.days, "day"))
	return nil
}

// issue signs a certificate and writes it.
func (f *certFlags) issue(cmd *cobra.Command, name string, server bool, allowed ...principal.Kind) error {
	lifetime, err := f.lifetime()
	if err != nil {
		return err
	}
	kind, err := parseCertKind(f.kind, allowed)
	if err != nil {
		return usageError(fmt.Errorf("--kind: %w", err))
	}
	now := time.Now()
	authority, err := certificates.LoadAuthority(orIn(f.caCert, f.dir, "ca.pem"), orIn(f.caKey, f.dir, "ca.key"), now)
	if err != nil {
		return fmt.Errorf("%w; scribe cert ca makes an authority", err)
	}
	pair, err := authority.Issue(certificates.Request{Name: name, Kind: kind, Server: server, Hosts: f.hosts, SPIFFE: f.spiffe, Now: now, Lifetime: lifetime})
	if err != nil {
		return usageError(err)
	}
	return f.write(cmd, name, pair)
}

func parseCertKind(word string, allowed []principal.Kind) (principal.Kind, error) {
	words := make([]string, len(allowed))
	for i, k := range allowed {
		if words[i] = k.String(); words[i] == word {
			return k, nil
		}
	}
	return principal.Anonymous, fmt.Errorf("invalid kind %q: want %s", word, strings.Join(words, " or "))
}

// orIn returns a path, or by default that of a file in a folder.
func orIn(path, dir, file string) string {
	if path != "" {
		return path
	}
	return filepath.Join(dir, file)
}

func newCertAuthority() *cobra.Command {
	var f certFlags
	var name string
	cmd := &cobra.Command{
		Use:   "ca",
		Short: "Make an authority that signs certificates",
		Long: `Make an authority that signs certificates: ca.pem, which everybody gets who has to trust it, and ca.key, with which it signs. Whoever has the key
can be anybody in the cell. To replace an authority, make another in another folder, and put both certificates into the files of those who trust it
(docs/security.md, Replacing certificates).`,
		Example: `  scribe cert ca
  scribe cert ca --dir /root/scribe-certs --name "scribe eu" --days 1825`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			lifetime, err := f.lifetime()
			if err != nil {
				return err
			}
			pair, err := certificates.NewAuthority(name, time.Now(), lifetime)
			if err != nil {
				return usageError(err)
			}
			return f.write(cmd, "ca", pair)
		},
	}
	f.addFlags(cmd, authorityDays)
	cmd.Flags().StringVar(&name, "name", "scribe", "name of the authority, in its certificate")
	return cmd
}

func newCertNodes() *cobra.Command {
	var f certFlags
	var cluster []string
	cmd := &cobra.Command{
		Use:   "nodes --cluster NAME=HOST:PORT,...",
		Short: "Make what the nodes of a cell need for scribe up --secure",
		Long: `Make what the nodes of a cell need for "scribe up --secure --node NAME": an authority, unless --dir has one, and for each node a folder NAME/secure with the authority's
certificate, and the node's certificate and key. Put each folder into the data folder of its node, and keep the authority's key off the machines of the cell.

Folders that are there stay as they are. So the command makes what a node more needs, with that in --cluster; and a certificate anew, when the folder was moved away: its files
are put in the place of the former ones while the node runs.`,
		Example: `  scribe cert nodes --cluster n1=10.0.0.1:7420,n2=10.0.0.2:7420,n3=10.0.0.3:7420
  ssh 10.0.0.2 mkdir -p /var/lib/scribe && scp -r certs/n2/secure 10.0.0.2:/var/lib/scribe/
  scribe up --secure --node n2 --cluster n1=10.0.0.1:7420,n2=10.0.0.2:7420,n3=10.0.0.3:7420 --data /var/lib/scribe --blob-path /mnt/shared/blobs`,
		Args: cobra.NoArgs,
	}
	f.addFlags(cmd, 365)
	cmd.Flags().StringSliceVar(&cluster, "cluster", nil, "all nodes of the cell, as scribe up has them: NAME=HOST:PORT,...")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return f.issueNodes(cmd, cluster) }
	return cmd
}

// issueNodes makes the folders of nodes that are not there.
func (f *certFlags) issueNodes(cmd *cobra.Command, cluster []string) error {
	names, hosts, err := app.NodeHosts(cluster)
	if err == nil && len(names) == 0 {
		err = errors.New("missing: want NAME=HOST:PORT of every node, separated by commas")
	}
	if err != nil {
		return usageError(fmt.Errorf("--cluster: %w", err))
	}
	lifetime, err := f.lifetime()
	if err != nil {
		return err
	}
	now, ca, caKey := time.Now(), filepath.Join(f.dir, app.SecureAuthority), filepath.Join(f.dir, "ca.key")
	if _, err := os.Stat(ca); errors.Is(err, fs.ErrNotExist) {
		pair, err := certificates.NewAuthority("scribe", now, authorityDays*day)
		if err != nil {
			return err
		}
		made := certFlags{dir: f.dir, days: authorityDays}
		if err := made.write(cmd, "ca", pair); err != nil {
			return err
		}
	}
	authority, err := certificates.LoadAuthority(ca, caKey, now)
	if err != nil {
		return err
	}
	text, err := os.ReadFile(ca)
	if err != nil {
		return err
	}
	for i, name := range names {
		dir := filepath.Join(f.dir, name, "secure")
		if _, err := os.Stat(dir); err == nil {
			fmt.Fprintf(cmd.ErrOrStderr(), "%s is there already, and stays\n", dir)
			continue
		}
		pair, err := authority.Issue(certificates.Request{Name: name, Kind: principal.Member, Server: true, Hosts: hosts[i : i+1], Now: now, Lifetime: lifetime})
		if err != nil {
			return err
		}
		// All of it or nothing: a folder that is there is taken for whole.
		if err := os.MkdirAll(filepath.Dir(dir), 0o700); err != nil {
			return err
		}
		part, err := os.MkdirTemp(filepath.Dir(dir), "secure-*")
		if err != nil {
			return err
		}
		err = errors.Join(pair.Write(filepath.Join(part, app.SecureCert), filepath.Join(part, app.SecureKey)), os.WriteFile(filepath.Join(part, app.SecureAuthority), text, 0o644)) //nolint:gosec // certificates are for everybody
		if err == nil {
			err = os.Rename(part, dir)
		}
		if err != nil {
			return errors.Join(err, os.RemoveAll(part))
		}
		fmt.Fprintf(cmd.ErrOrStderr(), "wrote %s, valid for %s: put it into the data folder of %s\n", dir, countText(f.days, "day"), name)
	}
	return nil
}

func newCertServer() *cobra.Command {
	var f certFlags
	cmd := &cobra.Command{
		Use:   "server NAME",
		Short: "Make the certificate of a process of the cell, or of a host's agent",
		Long: `Make the certificate of a process that serves: a member of the cell, which may do everything in it, or the agent of a host (--kind agent), which may
write. It proves the process both to those who call it, under the names and addresses of --host and those of the local host, and to those whom it calls.`,
		Example: `  scribe cert server n1 --host n1.example.net,10.0.0.1
  scribe cert server web1 --kind agent --host web1.example.net --days 90`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.issue(cmd, args[0], true, principal.Member, principal.Agent)
		},
	}
	f.addFlags(cmd, 365)
	f.addIssuer(cmd, principal.Member.String(), "member or agent")
	cmd.Flags().StringSliceVar(&f.hosts, "host", nil, "names and addresses under which it is reached, separated by commas, beside those of the local host")
	return cmd
}

func newCertClient() *cobra.Command {
	var f certFlags
	cmd := &cobra.Command{
		Use:   "client NAME",
		Short: "Make the certificate of a program or a person",
		Long: `Make the certificate of a program that reads and writes, of a person who runs the cell (--kind operator), or of an agent that serves nothing over TLS
(--kind agent). NAME is who it proves.`,
		Example: `  scribe cert client billing
  scribe cert client ada --kind operator --days 30
  SCRIBE_CA=certs/ca.pem SCRIBE_CERT=certs/ada.pem SCRIBE_KEY=certs/ada.key scribe status --server https://n1.example.net:7420`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.issue(cmd, args[0], false, principal.Client, principal.Agent, principal.Operator)
		},
	}
	f.addFlags(cmd, 365)
	f.addIssuer(cmd, principal.Client.String(), "client, agent or operator")
	return cmd
}

// shownCertificate is a certificate as it is shown.
type shownCertificate struct {
	File    string    `json:"file"`
	Subject string    `json:"subject"`
	Issuer  string    `json:"issuer"`
	Kind    string    `json:"kind,omitempty"`
	Name    string    `json:"name,omitempty"`
	Hosts   []string  `json:"hosts,omitempty"`
	CA      bool      `json:"ca,omitempty"`
	From    time.Time `json:"from"`
	To      time.Time `json:"to"`
	Note    string    `json:"note,omitempty"`
}

func newCertShow() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "show FILE...",
		Short: "Show what certificates say, and whether they are valid now",
		Example: `  scribe cert show certs/n1.pem certs/ca.pem
  scribe cert show certs/n1.pem -o json`,
		Args: cobra.MinimumNArgs(1),
	}
	format := tableFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, files []string) error {
		asJSON, err := format()
		if err != nil {
			return err
		}
		var shown []shownCertificate
		for _, file := range files {
			list, err := certificates.Read(file)
			if err != nil {
				return err
			}
			for _, c := range list {
				shown = append(shown, showCertificate(file, c, time.Now()))
			}
		}
		if asJSON {
			e := json.NewEncoder(cmd.OutOrStdout())
			e.SetIndent("", "  ")
			return e.Encode(shown)
		}
		w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
		fmt.Fprintln(w, "FILE\tKIND\tNAME\tHOSTS\tISSUER\tFROM\tTO\tNOTE")
		for _, c := range shown {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", c.File, c.Kind, c.Name, strings.Join(c.Hosts, ","), c.Issuer,
				c.From.Format(time.DateOnly), c.To.Format(time.DateOnly), c.Note)
		}
		return w.Flush()
	}
	return cmd
}

// showCertificate describes a certificate at a time.
func showCertificate(file string, c *x509.Certificate, now time.Time) shownCertificate {
	s := shownCertificate{
		File: file, Subject: c.Subject.String(), Issuer: c.Issuer.String(), CA: c.IsCA, Hosts: c.DNSNames, From: c.NotBefore.UTC(), To: c.NotAfter.UTC(),
	}
	for _, ip := range c.IPAddresses {
		s.Hosts = append(s.Hosts, ip.String())
	}
	if c.IsCA {
		s.Kind, s.Name = "authority", c.Subject.CommonName
	} else if p, err := principal.OfCertificate(c); err != nil {
		s.Note = err.Error()
	} else {
		s.Kind, s.Name = p.Kind.String(), p.Name
	}
	switch {
	case now.After(c.NotAfter):
		s.Note = "expired"
	case now.Before(c.NotBefore):
		s.Note = "not valid yet"
	}
	return s
}
