package test

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"scribe/internal/transport/certificates/certtest"
	"scribe/internal/transport/principal"
	"scribe/producer"
	"scribe/test/program"
)

// secureNodes is a cell of three nodes with TLS, whose files are replaced.
type secureNodes struct {
	*nodeCell

	written []byte // in the category log
}

// file is a file of a node, or of the clients.
func (c *secureNodes) file(whose, name string) string { return filepath.Join(c.dir, whose+"-"+name) }

// owners are those who have files: the nodes and the clients.
var owners = []string{"n1", "n2", "n3", "client"}

// trust puts authorities into the files of the nodes and of the clients.
func (c *secureNodes) trust(t *testing.T, authorities ...*certtest.Authority) {
	t.Helper()
	var files []string
	for _, a := range authorities {
		files = append(files, a.File)
	}
	for _, whose := range owners {
		certtest.Join(t, c.file(whose, "ca.pem"), files...)
	}
}

// certify gives the nodes and the clients certificates of an authority.
func (c *secureNodes) certify(t *testing.T, by *certtest.Authority) {
	t.Helper()
	for _, whose := range owners {
		cert, key := by.Server(whose)
		if whose == "client" {
			cert, key = by.Client("ada", principal.Operator)
		}
		certtest.Join(t, c.file(whose, "key.pem"), key)
		certtest.Join(t, c.file(whose, "cert.pem"), cert)
	}
}

// restartInTurn restarts the nodes one after another.
func (c *secureNodes) restartInTurn(t *testing.T) {
	t.Helper()
	for i := range c.nodes {
		c.nodes[i].Stop()
		c.start(t, i)
	}
}

// check requires that all nodes are up and serve what was written, which grows.
func (c *secureNodes) check(t *testing.T, what string) {
	t.Helper()
	for i := range c.nodes {
		lines := strings.Count(string(c.written), "\n")
		more := countedLines(lines, lines+50)
		produce(t, c.at(i), "log", more)
		c.written = append(c.written, more...)
		sameBytes(t, fmt.Sprintf("%s, at n%d", what, i+1), tail(t, c.at(i), "log"), c.written)
		for _, n := range c.list(t, i) {
			if n.State != "up" {
				t.Errorf("%s: n%d sees node %+v", what, i+1, n)
			}
		}
	}
}

// portAfter returns an address with another port: one that follows.
func portAfter(t *testing.T, address string, after int) string {
	t.Helper()
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	number, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	return net.JoinHostPort(host, strconv.Itoa(number+after))
}

// opensEtcd reports whether a certificate opens the etcd of a node, to its members or to its clients.
func (c *secureNodes) opensEtcd(t *testing.T, i, after int, cert, key string) bool {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{
		TLSClientConfig: &tls.Config{Certificates: []tls.Certificate{pair}, InsecureSkipVerify: true, MinVersion: tls.VersionTLS13}, //nolint:gosec // it asks who is let in
	}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+portAfter(t, c.address[i], after)+"/version", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	res, err := transport.RoundTrip(req)
	switch {
	case err == nil:
		_ = res.Body.Close()
		return res.StatusCode == http.StatusOK
	case !strings.Contains(err.Error(), "remote error: tls: "):
		t.Fatalf("etcd of n%d, at port + %d: %v", i+1, after, err)
	}
	return false
}

// TestNodesReplaceAuthority: the authority of nodes is replaced as docs/security.md says: both, restarts; certificates; the new one alone, restarts. Nothing fails for
// good and nothing is lost, and in the end nobody of the former authority gets into etcd.
func TestNodesReplaceAuthority(t *testing.T) {
	c := &secureNodes{nodeCell: &nodeCell{dir: t.TempDir(), nodes: make([]*program.Process, 3), secure: true}}
	c.env = func(i int) []string {
		whose := owners[i]
		return []string{
			"SCRIBE_TLS_CERT=" + c.file(whose, "cert.pem"), "SCRIBE_TLS_KEY=" + c.file(whose, "key.pem"), "SCRIBE_TLS_CA=" + c.file(whose, "ca.pem"), "SCRIBE_TLS_CLIENT_CA=" + c.file(whose, "ca.pem"),
		}
	}
	for range c.nodes {
		c.address = append(c.address, program.NodeAddress(t))
	}
	for name, file := range map[string]string{"SCRIBE_CA": "ca.pem", "SCRIBE_CERT": "cert.pem", "SCRIBE_KEY": "key.pem"} {
		t.Setenv(name, c.file("client", file))
	}
	former, next := certtest.New(t, "former", time.Now()), certtest.New(t, "next", time.Now())
	c.trust(t, former)
	c.certify(t, former)
	c.startAll(t)
	ok(t, nil, "category", "create", "once", "--delivery", "exactly_once", "--server", c.url(0))
	stop := c.writeOnce(t, producer.WithTLS(producer.TLS{CA: c.file("client", "ca.pem"), Cert: c.file("client", "cert.pem"), Key: c.file("client", "key.pem")}))
	defer stop()
	c.check(t, "at the beginning")
	oldCert, oldKey := former.Server("n1")
	newCert, newKey := next.Server("n1")
	c.trust(t, former, next)
	// This is why nodes are restarted: their etcd does not look at the file again.
	for _, port := range []int{1, 2} {
		if !c.opensEtcd(t, 0, port, oldCert, oldKey) || c.opensEtcd(t, 0, port, newCert, newKey) {
			t.Errorf("before restarts, at port + %d, etcd does not take exactly the certificates of the former authority", port)
		}
	}
	c.restartInTurn(t)
	c.check(t, "with both authorities")
	c.certify(t, next)
	c.check(t, "with certificates of the next authority")
	c.trust(t, next)
	c.restartInTurn(t)
	c.check(t, "with the next authority alone")
	for i := range c.nodes {
		for _, port := range []int{1, 2} {
			if c.opensEtcd(t, i, port, oldCert, oldKey) || !c.opensEtcd(t, i, port, newCert, newKey) {
				t.Errorf("in the end, at port + %d of n%d, etcd does not take exactly the certificates of the next authority", port, i+1)
			}
		}
	}
	count := stop()
	for i := range c.nodes {
		c.checkOnce(t, i, count)
	}
}
