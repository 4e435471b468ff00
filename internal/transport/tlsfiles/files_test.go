package tlsfiles_test

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"scribe/internal/transport/certificates"
	"scribe/internal/transport/certificates/certtest"
	"scribe/internal/transport/principal"
	"scribe/internal/transport/tlsfiles"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var begin = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// clock is a wall clock that a test moves.
type clock struct{ since atomic.Int64 }

func (c *clock) Now() time.Time          { return begin.Add(time.Duration(c.since.Load())) }
func (c *clock) advance(d time.Duration) { c.since.Add(int64(d)) }

// look lets the next handshake look at the files.
func (c *clock) look() { c.advance(2 * time.Second) }

// process are the files of a process in a folder of its own, so that they can be replaced.
type process struct {
	t *testing.T
	tlsfiles.Config
	clock *clock
	files *tlsfiles.Files
}

// newProcess opens files that hold what others hold; empty paths are none.
func newProcess(t *testing.T, c *clock, cert, key, ca, clientCA string) *process {
	t.Helper()
	p := &process{t: t, clock: c}
	dir := t.TempDir()
	put := func(name, from string) string {
		if from == "" {
			return ""
		}
		path := filepath.Join(dir, name)
		certtest.Join(t, path, from)
		return path
	}
	p.Config = tlsfiles.Config{Cert: put("cert", cert), Key: put("key", key), CA: put("ca", ca), ClientCA: put("client-ca", clientCA)}
	p.open()
	return p
}

func (p *process) open() {
	p.t.Helper()
	files, err := tlsfiles.Open(p.Config, tlsfiles.Deps{Now: p.clock.Now})
	if err != nil {
		p.t.Fatal(err)
	}
	p.files = files
}

// dial returns both ends of a connection. It has buffers, as the alerts of a failed handshake need.
func dial(t *testing.T) (near, far net.Conn) {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if near, err = new(net.Dialer).DialContext(t.Context(), "tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if far, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	return near, far
}

// connect makes a connection from one process to another, and returns what the server sees of it.
func connect(t *testing.T, client, server *tlsfiles.Files, host string) (tls.ConnectionState, error) {
	t.Helper()
	near, far := dial(t)
	defer near.Close()
	defer far.Close()
	accepted := make(chan tls.ConnectionState, 1)
	go func() {
		c := tls.Server(far, server.ServerConfig())
		_ = c.Handshake() // the client's error is the one that counts
		accepted <- c.ConnectionState()
	}()
	c, err := client.Handshake(t.Context(), near, host, "h2")
	if err != nil {
		_ = far.Close()
		return <-accepted, err
	}
	state := <-accepted
	_ = near.Close() // not in order: nobody reads the other end
	if v := c.ConnectionState().Version; v != tls.VersionTLS13 {
		t.Errorf("version %x: want TLS 1.3", v)
	}
	return state, nil
}

// TestReload: what is put into the files counts from the next handshake on; what does not fit together does not count.
func TestReload(t *testing.T) {
	c := new(clock)
	ca := certtest.New(t, "ca", begin)
	cert, key := ca.Server("n1")
	server := newProcess(t, c, cert, key, "", ca.File)
	client := newProcess(t, c, "", "", ca.File, "")
	serial := func() string {
		t.Helper()
		near, far := dial(t)
		defer near.Close()
		defer far.Close()
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = tls.Server(far, server.files.ServerConfig()).Handshake()
		}()
		conn, err := client.files.Handshake(t.Context(), near, "localhost", "h2")
		if err != nil {
			t.Fatal(err)
		}
		<-done
		return conn.ConnectionState().PeerCertificates[0].SerialNumber.String()
	}
	first := serial()
	nextCert, nextKey := ca.Server("n1")
	certtest.Join(t, server.Cert, nextCert)
	if got := serial(); got != first {
		t.Error("the files are looked at at every handshake")
	}
	c.look()
	if got := serial(); got != first {
		t.Error("a certificate is used without its key")
	}
	if s := server.files.Stats(); s.Reloads != 0 || s.Failures != 1 {
		t.Errorf("%+v: want one failure", s)
	}
	certtest.Join(t, server.Key, nextKey)
	c.look()
	second := serial()
	if second == first {
		t.Error("the new certificate is not used")
	}
	if err := os.Remove(server.Cert); err != nil {
		t.Fatal(err)
	}
	c.look()
	if got := serial(); got != second {
		t.Error("a file that is gone for a moment ends the service")
	}
	if err := os.WriteFile(server.Cert, []byte("half a "), 0o600); err != nil {
		t.Fatal(err)
	}
	c.look()
	if got := serial(); got != second {
		t.Error("half a file is used")
	}
	certtest.Join(t, server.Cert, nextCert)
	c.look()
	serial()
	if s := server.files.Stats(); s.Reloads != 1 || s.Failures != 3 || !s.NotAfter.Equal(begin.Add(365*24*time.Hour)) {
		t.Errorf("%+v", s)
	}
	certtest.Join(t, server.Key, key)
	certtest.Join(t, server.Cert, cert)
	c.advance(-time.Minute)
	if got := serial(); got != first {
		t.Error("after the clock was set back the files are not looked at")
	}
}

// TestAuthoritiesOverlap replaces the authority of servers while old and new certificates are in use.
func TestAuthoritiesOverlap(t *testing.T) {
	c := new(clock)
	before, after := certtest.New(t, "before", begin), certtest.New(t, "after", begin)
	oldCert, oldKey := before.Server("n1")
	newCert, newKey := after.Server("n1")
	old, replaced := newProcess(t, c, oldCert, oldKey, "", ""), newProcess(t, c, newCert, newKey, "", "")
	client := newProcess(t, c, "", "", before.File, "")
	reach := func(server *process) bool {
		_, err := connect(t, client.files, server.files, "localhost")
		return err == nil
	}
	for _, step := range []struct {
		authorities []string
		old, new    bool
	}{
		{[]string{before.File}, true, false},
		{[]string{before.File, after.File}, true, true},
		{[]string{after.File}, false, true},
	} {
		certtest.Join(t, client.CA, step.authorities...)
		c.look()
		if gotOld, gotNew := reach(old), reach(replaced); gotOld != step.old || gotNew != step.new {
			t.Errorf("with %v: the old certificate %v, the new one %v: want %v, %v", step.authorities, gotOld, gotNew, step.old, step.new)
		}
	}
}

// TestTLSMistakes: each mistake is told with what to do about it.
func TestTLSMistakes(t *testing.T) {
	ca, other := certtest.New(t, "cell", begin), certtest.New(t, "another cell", begin)
	cert, key := ca.Server("n1", "n1.example.net")
	strange, strangeKey := other.Server("n1")
	short, shortKey := ca.Issue(certificates.Request{Name: "n1", Kind: principal.Member, Server: true, Lifetime: time.Hour})
	text := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text, []byte("no PEM"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		cfg  tlsfiles.Config
		at   time.Duration
		want []string
	}{
		"a key of another certificate": {tlsfiles.Config{Cert: cert, Key: strangeKey}, 0, []string{"the key in " + strangeKey, "is not that of the certificate in " + cert}},
		"no key":                       {tlsfiles.Config{Cert: cert}, 0, []string{"want the file of the key of tls_cert"}},
		"no certificate":               {tlsfiles.Config{Key: key}, 0, []string{"want the file of the certificate of tls_key"}},
		"expired":                      {tlsfiles.Config{Cert: short, Key: shortKey}, 2 * time.Hour, []string{short, "expired at 2026-01-02T04:04:05Z"}},
		"not valid yet":                {tlsfiles.Config{Cert: cert, Key: key}, -time.Hour, []string{"is valid from 2026-01-02T02:59:05Z on", "clock"}},
		"no file":                      {tlsfiles.Config{CA: text + "-x"}, 0, []string{text + "-x", "no such file"}},
		"no PEM":                       {tlsfiles.Config{CA: text}, 0, []string{text, "no certificate in PEM"}},
		"a key for an authority":       {tlsfiles.Config{CA: key}, 0, []string{key, "has a PRIVATE KEY"}},
		"client certificates alone":    {tlsfiles.Config{ClientCA: ca.File}, 0, []string{"only a process that serves with TLS"}},
	} {
		t.Run(name, func(t *testing.T) {
			now := new(clock)
			now.advance(c.at)
			_, err := tlsfiles.Open(c.cfg, tlsfiles.Deps{Now: now.Now})
			for _, want := range c.want {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("%v: want %q", err, want)
				}
			}
		})
	}
	now := new(clock)
	client := newProcess(t, now, "", "", ca.File, "")
	server := func(cert, key string) *tlsfiles.Files { return newProcess(t, now, cert, key, "", "").files }
	for name, c := range map[string]struct {
		client, server *tlsfiles.Files
		host           string
		want           []string
	}{
		"another authority": {client.files, server(strange, strangeKey), "localhost", []string{`signed by "CN=another cell"`, "not among those in " + client.CA, "--tls-ca", "SCRIBE_CA"}},
		"the machine's":     {nil, server(cert, key), "localhost", []string{"not among the authorities of this machine"}},
		"another name":      {client.files, server(cert, key), "n2.example.net", []string{"is for n1.example.net, localhost", "not for n2.example.net", "--tls-server-name"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := connect(t, c.client, c.server, c.host)
			for _, want := range c.want {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("%v: want %q", err, want)
				}
			}
		})
	}
	t.Run("an expired server", func(t *testing.T) {
		later := new(clock)
		later.advance(24 * time.Hour)
		late := newProcess(t, later, "", "", ca.File, "")
		_, err := connect(t, late.files, server(short, shortKey), "localhost")
		if err == nil || !strings.Contains(err.Error(), "to 2026-01-02T04:04:05Z only") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("a server without TLS", func(t *testing.T) {
		near, far := dial(t)
		defer far.Close()
		go func() {
			if _, err := far.Read(make([]byte, 1<<10)); err == nil {
				_, _ = io.WriteString(far, "HTTP/1.1 400 Bad Request\r\n\r\n")
			}
			_, _ = io.Copy(io.Discard, far)
		}()
		_, err := client.files.Handshake(t.Context(), near, "localhost", "h2")
		if err == nil || !strings.Contains(err.Error(), "does not speak TLS: use http://") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("a server that says nothing", func(t *testing.T) {
		near, far := dial(t)
		defer far.Close()
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			_, _ = far.Read(make([]byte, 1<<10))
			cancel()
		}()
		if _, err := client.files.Handshake(ctx, near, "localhost", "h2"); err == nil || !strings.Contains(err.Error(), "TLS with the server at 127.0.0.1") {
			t.Errorf("got %v", err)
		}
	})
}

// TestServerName: the name that is expected can be another one than the host.
func TestServerName(t *testing.T) {
	c := new(clock)
	ca := certtest.New(t, "ca", begin)
	cert, key := ca.Server("n1", "cell.example.net")
	server := newProcess(t, c, cert, key, "", "")
	client := newProcess(t, c, "", "", ca.File, "")
	if _, err := connect(t, client.files, server.files, "10.1.2.3"); err == nil {
		t.Error("it is not for that address")
	}
	client.ServerName = "cell.example.net"
	client.open()
	if _, err := connect(t, client.files, server.files, "10.1.2.3"); err != nil {
		t.Error(err)
	}
	if err := server.files.CheckName("cell.example.net"); err != nil {
		t.Error(err)
	}
	if err := server.files.CheckName("n9.example.net"); err == nil {
		t.Error("it is for every name")
	}
}

// TestVerifyClient: whom a connection names, and that it ends in good order when its certificate does not hold any more.
func TestVerifyClient(t *testing.T) {
	c := new(clock)
	before, after := certtest.New(t, "before", begin), certtest.New(t, "after", begin)
	cert, key := before.Server("n1")
	server := newProcess(t, c, cert, key, "", before.File)
	state := func(cert, key string) *tls.ConnectionState {
		t.Helper()
		client := newProcess(t, c, cert, key, before.File, "")
		s, err := connect(t, client.files, server.files, "localhost")
		if err != nil {
			t.Fatal(err)
		}
		return &s
	}
	refused := func(name string, s *tls.ConnectionState, want string) {
		t.Helper()
		v, ended := server.files.VerifyClient(s, nil)
		if ended || v.Err == nil || !strings.Contains(v.Err.Error(), want) || v.Principal != (principal.Principal{}) {
			t.Errorf("%s: %+v: want %q", name, v, want)
		}
	}
	refused("no certificate", state("", ""), "no client certificate")
	strange := state(after.Client("ada", principal.Operator))
	refused("another authority", strange, "signed by an authority that the server does not know")
	old := state(before.Issue(certificates.Request{Name: "old", Kind: principal.Operator, Lifetime: time.Hour}))
	c.advance(2 * time.Hour)
	refused("expired", old, `"old" proves nothing: it expired at 2026-01-02T04:04:05Z`)
	c.advance(-2 * time.Hour)
	serverOnly := state(before.Server("n2"))
	if v, _ := server.files.VerifyClient(serverOnly, nil); v.Err != nil || v.Principal != (principal.Principal{Kind: principal.Member, Name: "n2"}) {
		t.Errorf("a member: %+v", v)
	}

	good := state(before.Client("ada", principal.Operator))
	v, ended := server.files.VerifyClient(good, nil)
	if ended || v.Err != nil || v.Principal != (principal.Principal{Kind: principal.Operator, Name: "ada"}) {
		t.Fatalf("%+v, %v", v, ended)
	}
	if again, ended := server.files.VerifyClient(good, v); ended || again != v {
		t.Error("what is known is verified again")
	}
	unknown, _ := server.files.VerifyClient(strange, nil)
	certtest.Join(t, server.ClientCA, before.File, after.File)
	c.look()
	if both, ended := server.files.VerifyClient(good, v); ended || both.Err != nil {
		t.Errorf("with both authorities: %+v, %v", both, ended)
	}
	if known, ended := server.files.VerifyClient(strange, unknown); ended || known.Err != nil {
		t.Errorf("an authority that was added: %+v, %v", known, ended)
	}
	certtest.Join(t, server.ClientCA, after.File)
	c.look()
	if last, ended := server.files.VerifyClient(good, v); !ended || last.Principal.Name != "ada" {
		t.Errorf("without its authority the connection goes on: %+v, %v", last, ended)
	}
	refused("a new connection of the former authority", good, "does not know")

	certtest.Join(t, server.ClientCA, before.File)
	c.look()
	v, _ = server.files.VerifyClient(good, nil)
	c.advance(366 * 24 * time.Hour)
	if last, ended := server.files.VerifyClient(good, v); !ended || last.Err != nil {
		t.Errorf("after its certificate has expired the connection goes on: %+v, %v", last, ended)
	}
}
