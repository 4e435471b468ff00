package test

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"scribe/test/program"
)

// TestSecureNodes: three nodes with --secure, as the README says: one command makes their files, and everything between them, their etcd and their clients is secured. Messages, a group, a
// certificate that is replaced while they run, and a node that is.
func TestSecureNodes(t *testing.T) {
	c := &nodeCell{dir: t.TempDir(), nodes: make([]*program.Process, 3), secure: true}
	c.env = func(int) []string { return []string{"SCRIBE_SECURE=true"} }
	for range c.nodes {
		c.address = append(c.address, program.NodeAddress(t))
	}
	certs := filepath.Join(c.dir, "certs")
	cluster := c.flags(0)[3]
	give := func(i int) {
		t.Helper()
		if err := os.CopyFS(filepath.Join(c.data(i), "secure"), os.DirFS(filepath.Join(certs, fmt.Sprintf("n%d", i+1), "secure"))); err != nil {
			t.Fatal(err)
		}
	}
	refused, out := c.launch(t, 0)
	go func() { _, _ = io.Copy(io.Discard, out) }()
	<-refused.Done
	if !strings.Contains(refused.Log.String(), "scribe cert nodes --cluster "+cluster) {
		t.Errorf("a node without files does not name the command:\n%s", refused.Log)
	}
	ok(t, nil, "cert", "nodes", "--cluster", cluster, "--dir", certs)
	for i := range c.nodes {
		give(i)
	}
	c.startAll(t)
	sourceFile(t, filepath.Join(c.data(0), "secure", "admin.env"))
	token := os.Getenv("SCRIBE_TOKEN")
	input := countedLines(0, 200)
	produce(t, c.at(0), "log", input)
	check := func(what string) {
		t.Helper()
		for i := range c.nodes {
			sameBytes(t, fmt.Sprintf("%s, at n%d", what, i+1), tail(t, c.at(i), "log"), input)
		}
		for i, n := range c.list(t, 0) {
			if n.State != "up" {
				t.Errorf("%s: n%d is %+v", what, i+1, n)
			}
		}
	}
	check("at the beginning")
	sameBytes(t, "a group", ok(t, nil, "tail", "log", "--from", "earliest", "--until-end", "-o", "raw", "--group", "readers", "--server", c.url(1)), input)
	wantCode(t, cli(t, nil, "group", "describe", "readers", "--server", c.url(2)), 0, "log")
	t.Setenv("SCRIBE_TOKEN", "")
	for i := range c.nodes {
		wantCode(t, cli(t, nil, "tail", "log", "--until-end", "--server", c.url(i)), 4)
		wantCode(t, cli(t, nil, "node", "list", "--server", c.url(i)), 4)
		checkEtcdRefuses(t, c, i)
	}
	t.Setenv("SCRIBE_TOKEN", token)

	// n1 gets another certificate while it runs.
	before := servedSerial(t, c, 0)
	if err := os.RemoveAll(filepath.Join(certs, "n1")); err != nil {
		t.Fatal(err)
	}
	ok(t, nil, "cert", "nodes", "--cluster", cluster, "--dir", certs)
	for _, name := range []string{"server.key", "server.pem"} {
		text, err := os.ReadFile(filepath.Join(certs, "n1", "secure", name))
		if err != nil {
			t.Fatal(err)
		}
		at := filepath.Join(c.data(0), "secure", name)
		if err := os.WriteFile(at+".new", text, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(at+".new", at); err != nil {
			t.Fatal(err)
		}
	}
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(waitLimit)
	for servedSerial(t, c, 0) == before {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal("n1 does not take its new certificate")
		}
	}
	more := countedLines(200, 300)
	produce(t, c.at(0), "log", more)
	input = append(input, more...)
	check("with another certificate")

	// n3 loses its disk.
	c.nodes[2].Kill()
	if err := os.RemoveAll(c.data(2)); err != nil {
		t.Fatal(err)
	}
	ok(t, nil, "node", "replace", "n3", "--server", c.url(0))
	give(2)
	c.start(t, 2)
	check("after n3 was replaced")

	// Who has the file of another node administers as well.
	sourceFile(t, filepath.Join(c.data(2), "secure", "admin.env"))
	wantCode(t, cli(t, nil, "token", "list", "--server", c.url(0)), 0, "admin-n1", "admin-n2", "admin-n3")
}

// checkEtcdRefuses fails if the etcd of a node talks to whom has no certificate, at either port.
func checkEtcdRefuses(t *testing.T, c *nodeCell, i int) {
	t.Helper()
	for after := 1; after <= 2; after++ {
		conn, err := tls.Dial("tcp", portAfter(t, c.address[i], after), &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13}) //nolint:gosec // it asks who is let in
		if err != nil {
			t.Fatal(err)
		}
		if _, err = conn.Read(make([]byte, 1)); err == nil || !strings.Contains(err.Error(), "remote error: tls: ") {
			t.Errorf("the etcd of n%d, at port + %d, without a certificate: %v", i+1, after, err)
		}
		_ = conn.Close()
	}
}

// servedSerial returns the number of the certificate that a node serves with.
func servedSerial(t *testing.T, c *nodeCell, i int) string {
	t.Helper()
	text, err := os.ReadFile(os.Getenv("SCRIBE_CA"))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(text)
	conn, err := tls.Dial("tcp", c.address[i], &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	return conn.ConnectionState().PeerCertificates[0].SerialNumber.String()
}
