package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
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
