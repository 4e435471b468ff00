package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"scribe/internal/transport/certificates"
	"scribe/internal/transport/principal"
)

// runCommand runs the program's command line, and returns what it prints.
func runCommand(t *testing.T, args ...string) (stdout string, err error) {
	t.Helper()
	root := newRoot()
	var out, errs bytes.Buffer
	root.SetOut(&out)
	root.SetErr(&errs)
	root.SetArgs(args)
	err = root.ExecuteContext(t.Context())
	return out.String(), err
}

// TestCert makes an authority and what it signs, and shows them.
func TestCert(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "certs")
	for _, args := range [][]string{
		{"cert", "ca", "--name", "scribe eu"},
		{"cert", "server", "n1", "--host", "n1.example.net,10.0.0.1"},
		{"cert", "server", "web1", "--kind", "agent", "--days", "90"},
		{"cert", "client", "billing"},
		{"cert", "client", "ada", "--kind", "operator", "--spiffe", "spiffe://example.org/ada"},
	} {
		if _, err := runCommand(t, append(args, "--dir", dir)...); err != nil {
			t.Fatalf("%v: %v", args, err)
		}
	}
	for _, name := range []string{"ca", "n1", "web1", "billing", "ada"} {
		if info, err := os.Stat(filepath.Join(dir, name+".key")); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s.key: %v, %v", name, info, err)
		}
	}
	files := []string{filepath.Join(dir, "ca.pem"), filepath.Join(dir, "n1.pem"), filepath.Join(dir, "web1.pem"), filepath.Join(dir, "billing.pem"), filepath.Join(dir, "ada.pem")}
	out, err := runCommand(t, append([]string{"cert", "show", "-o", "json"}, files...)...)
	var shown []shownCertificate
	if err != nil || json.Unmarshal([]byte(out), &shown) != nil || len(shown) != len(files) {
		t.Fatalf("%v\n%s", err, out)
	}
	for i, want := range []struct{ kind, name string }{
		{"authority", "scribe eu"}, {"member", "n1"}, {"agent", "web1"}, {"client", "billing"}, {"operator", "spiffe://example.org/ada"},
	} {
		if s := shown[i]; s.Kind != want.kind || s.Name != want.name || s.Note != "" || !strings.Contains(s.Issuer, "scribe eu") {
			t.Errorf("%+v: want %+v", s, want)
		}
	}
	if hosts := strings.Join(shown[1].Hosts, " "); !strings.Contains(hosts, "n1.example.net") || !strings.Contains(hosts, "10.0.0.1") {
		t.Errorf("the server is for %s", hosts)
	}
	table, err := runCommand(t, append([]string{"cert", "show"}, files...)...)
	if err != nil || !strings.Contains(table, "KIND") || !strings.Contains(table, "spiffe://example.org/ada") {
		t.Errorf("%v\n%s", err, table)
	}
}

func TestCertMistakes(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "certs")
	if _, err := runCommand(t, "cert", "client", "ada", "--dir", dir); err == nil || !strings.Contains(err.Error(), "scribe cert ca makes an authority") {
		t.Errorf("without an authority: %v", err)
	}
	if _, err := runCommand(t, "cert", "ca", "--dir", dir); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"ca"}, exitError, "is there already"},
		{[]string{"client", "ada", "--kind", "member"}, exitUsage, `invalid kind "member": want client or agent or operator`},
		{[]string{"server", "n1", "--kind", "operator"}, exitUsage, `invalid kind "operator": want member or agent`},
		{[]string{"server", "n1", "--host", "n1:7420"}, exitUsage, "invalid host"},
		{[]string{"client", "ada", "--days", "0"}, exitUsage, "invalid value 0 for --days"},
		{[]string{"client", "ada", "--days", "4000"}, exitUsage, "its authority expires"},
		{[]string{"client", "../ada"}, exitUsage, "invalid name"},
		{[]string{"client"}, exitUsage, "0 arguments"},
	} {
		_, err := runCommand(t, append(append([]string{"cert"}, c.args...), "--dir", dir)...)
		if exitCode(err) != c.code || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: exit code %d, %v: want %d, %q", c.args, exitCode(err), err, c.code, c.want)
		}
	}
}

// TestClientTLSFlags: what is wrong with the files of a client is told before anything is called.
func TestClientTLSFlags(t *testing.T) {
	for _, c := range []struct{ variable, want string }{
		{"SCRIBE_CERT", "--tls-cert needs --tls-key"}, {"SCRIBE_KEY", "--tls-key needs --tls-cert"}, {"SCRIBE_CA", "no such file"},
	} {
		t.Run(c.variable, func(t *testing.T) {
			t.Setenv(c.variable, filepath.Join(t.TempDir(), "x.pem"))
			for _, args := range [][]string{{"status"}, {"tail", "access"}, {"bench", "produce"}} {
				if _, err := runCommand(t, args...); exitCode(err) != exitUsage || !strings.Contains(err.Error(), c.want) {
					t.Errorf("%v: exit code %d, %v: want %q", args, exitCode(err), err, c.want)
				}
			}
		})
	}
	// The variable of a certificate's key is not that of tail --key.
	t.Setenv("SCRIBE_KEY", "k.pem")
	tail := newTail()
	tail.RunE = func(cmd *cobra.Command, _ []string) error { return fromEnvironment(cmd.Flags()) }
	tail.SetArgs([]string{"access"})
	if err := tail.Execute(); err != nil || tail.Flags().Changed("key") || !tail.Flags().Changed("tls-key") {
		t.Errorf("%v: --key is set: %v, --tls-key: %v", err, tail.Flags().Changed("key"), tail.Flags().Changed("tls-key"))
	}
}

// TestCertNodes: each node gets a folder with a certificate for its host, of one authority. What is there stays, so that a node more gets one of the same.
func TestCertNodes(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "certs")
	three := "n1=n1.example.net:7420,n2=10.0.0.2:7420,n3=10.0.0.3:7420"
	read := func(path ...string) string {
		t.Helper()
		text, err := os.ReadFile(filepath.Join(append([]string{dir}, path...)...))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	if _, err := runCommand(t, "cert", "nodes", "--cluster", three, "--dir", dir); err != nil {
		t.Fatal(err)
	}
	ca, first := read("ca.pem"), read("n1", "secure", "server.pem")
	if _, err := runCommand(t, "cert", "nodes", "--cluster", three+",n4=10.0.0.4:7420", "--dir", dir, "--days", "30"); err != nil {
		t.Fatal(err)
	}
	if read("ca.pem") != ca || read("n1", "secure", "server.pem") != first {
		t.Error("what was there was made anew")
	}
	for name, host := range map[string]string{"n1": "n1.example.net", "n2": "10.0.0.2", "n3": "10.0.0.3", "n4": "10.0.0.4"} {
		if read(name, "secure", "ca.pem") != ca {
			t.Errorf("%s has another authority", name)
		}
		if info, err := os.Stat(filepath.Join(dir, name, "secure", "server.key")); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", name, info, err)
		}
		list, err := certificates.Read(filepath.Join(dir, name, "secure", "server.pem"))
		if err != nil {
			t.Fatal(err)
		}
		p, err := principal.OfCertificate(list[0])
		if err != nil || p != (principal.Principal{Kind: principal.Member, Name: name}) || list[0].VerifyHostname(host) != nil || list[0].VerifyHostname(principal.MemberHost) != nil {
			t.Errorf("%s: %+v, %v, for %v", name, p, err, list[0].DNSNames)
		}
		if entries, err := os.ReadDir(filepath.Join(dir, name)); err != nil || len(entries) != 1 {
			t.Errorf("%s: %v, %v", name, entries, err)
		}
	}
	for _, cluster := range []string{"", "n1", "n1=0.0.0.0:7420"} {
		if _, err := runCommand(t, "cert", "nodes", "--cluster", cluster, "--dir", dir); err == nil || !strings.Contains(err.Error(), "--cluster") {
			t.Errorf("--cluster %q: %v", cluster, err)
		}
	}
}
