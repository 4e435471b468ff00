package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/apache/arrow-go/v18/arrow/flight/flightsql"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"scribe/consumer"
	"scribe/internal/transport/certificates/certtest"
	"scribe/internal/transport/discovery"
	"scribe/internal/transport/principal"
	"scribe/internal/transport/rpc"
	"scribe/internal/transport/rpc/memhttp"
	"scribe/internal/transport/tlsfiles"
	"scribe/producer"
	scribev1 "scribe/proto/scribe/v1"
)

// cellFiles are the files of a cell: its authority, and a certificate that all its processes use.
type cellFiles struct {
	t         *testing.T
	ca        *certtest.Authority
	cert, key string
	// clock moves ahead of the real one when processes are to look at their files.
	clock atomic.Int64
}

func newCellFiles(t *testing.T) *cellFiles {
	t.Helper()
	f := &cellFiles{t: t, ca: certtest.New(t, "cell", time.Now())}
	f.cert, f.key = f.ca.Server("n1")
	return f
}

// config is that of the cell's processes: members of one another.
func (f *cellFiles) config() tlsfiles.Config {
	return tlsfiles.Config{Cert: f.cert, Key: f.key, CA: f.ca.File, ClientCA: f.ca.File}
}

// Now is the clock of the cell's processes.
func (f *cellFiles) Now() time.Time { return time.Now().Add(time.Duration(f.clock.Load())) }

// look lets the next handshake of each process look at its files.
func (f *cellFiles) look() { f.clock.Add(int64(2 * time.Second)) }

// start starts a process with the cell's files.
func (f *cellFiles) start(change func(*Config)) *App {
	f.t.Helper()
	c := DefaultConfig()
	c.Data, c.Listen, c.TLS = filepath.Join(f.t.TempDir(), "data"), "127.0.0.1:0", f.config()
	if change != nil {
		change(&c)
	}
	a, err := Start(f.t.Context(), c, Options{Logger: slog.New(slog.DiscardHandler), Version: "test", Host: Host{Now: f.Now}})
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { stopNow(f.t, a) })
	return a
}

// open opens the files of a client.
func (f *cellFiles) open(cfg tlsfiles.Config) *tlsfiles.Files {
	f.t.Helper()
	files, err := tlsfiles.Open(cfg, tlsfiles.Deps{Now: f.Now})
	if err != nil {
		f.t.Fatal(err)
	}
	return files
}

// transport returns the connections of a client of a kind; of anonymous ones without a certificate.
func (f *cellFiles) transport(kind principal.Kind) *rpc.Transport {
	f.t.Helper()
	cfg := tlsfiles.Config{CA: f.ca.File}
	if kind != principal.Anonymous {
		cfg.Cert, cfg.Key = f.ca.Client(kind.String(), kind)
	}
	transport := rpc.NewTransport(nil, rpc.WithTLS(f.open(cfg)))
	f.t.Cleanup(transport.Close)
	return transport
}

// TestTLSCell: programs with certificates write, read and ask over TLS, as the table says, and others do not.
func TestTLSCell(t *testing.T) {
	files := newCellFiles(t)
	a := files.start(func(c *Config) { c.Flight = "127.0.0.1:0" })
	if !strings.HasPrefix(a.URL(), "https://127.0.0.1:") {
		t.Errorf("it serves at %s", a.URL())
	}
	cert, key := files.ca.Client("billing", principal.Client)
	p, err := producer.New(a.URL(), producer.WithTLS(producer.TLS{CA: files.ca.File, Cert: cert, Key: key}))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := p.Close(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	if err := p.Write(t.Context(), "orders", producer.Message{Payload: []byte("42")}); err != nil {
		t.Fatal(err)
	}
	c, err := consumer.New(a.URL(), "orders", consumer.WithTLS(consumer.TLS{CA: files.ca.File, Cert: cert, Key: key}), consumer.WithStart(consumer.Earliest()))
	if err != nil {
		t.Fatal(err)
	}
	for r, err := range c.Records(t.Context()) {
		if err != nil || string(r.Payload) != "42" {
			t.Errorf("read %q, %v", r.Payload, err)
		}
		break
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	client := files.transport(principal.Client)
	status, body := request(t, client.HTTPClient(), "GET", a.URL()+"/v1/query?sql="+url.QueryEscape("SELECT payload FROM orders")+"&format=csv")
	if status != 200 || !strings.Contains(body, "42") {
		t.Errorf("a query: %d %q", status, body)
	}
	for kind, want := range map[principal.Kind]connect.Code{
		principal.Anonymous: connect.CodeUnauthenticated, principal.Agent: connect.CodePermissionDenied, principal.Client: connect.CodePermissionDenied,
		principal.Operator: 0, principal.Member: 0,
	} {
		if kind == principal.Member {
			continue // certificates of members are servers'
		}
		_, err := rpc.NewControlClient(files.transport(kind), a.URL()).ListMembers(t.Context(), &scribev1.ListMembersRequest{})
		if got := connect.CodeOf(err); want != 0 && got != want || want == 0 && err != nil {
			t.Errorf("%s lists members: %v, want %v", kind, err, want)
		}
	}
	if status, _ := request(t, files.transport(principal.Anonymous).HTTPClient(), "GET", a.URL()+"/readyz"); status != 200 {
		t.Errorf("a probe: %d", status)
	}
}

// TestTLSFlight: Flight has the same certificates and the same table, on an address of its own and on that of everything else.
func TestTLSFlight(t *testing.T) {
	files := newCellFiles(t)
	addr := make(chan string, 1)
	c := DefaultConfig()
	c.Data, c.Listen, c.Flight, c.TLS = filepath.Join(t.TempDir(), "data"), "127.0.0.1:0", "localhost:0", files.config()
	a, err := Start(t.Context(), c, Options{Logger: slog.New(slog.DiscardHandler), Version: "test", Host: Host{
		Listen: func(ctx context.Context, network, address string) (net.Listener, error) {
			l, err := new(net.ListenConfig).Listen(ctx, network, address)
			if err == nil && address == "localhost:0" {
				addr <- l.Addr().String()
			}
			return l, err
		},
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer stopNow(t, a)
	own, main := <-addr, strings.TrimPrefix(a.URL(), "https://")
	ask := func(at string, kind principal.Kind) error {
		t.Helper()
		cfg := tlsfiles.Config{CA: files.ca.File}
		if kind != principal.Anonymous {
			cfg.Cert, cfg.Key = files.ca.Client(kind.String(), kind)
		}
		client, err := flight.NewClientWithMiddleware(at, nil, nil, grpc.WithTransportCredentials(credentials.NewTLS(files.open(cfg).ClientConfig())))
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		sql := &flightsql.Client{Client: client}
		_, err = sql.GetTables(t.Context(), &flightsql.GetTablesOpts{})
		return err
	}
	for kind, want := range map[principal.Kind]codes.Code{
		principal.Anonymous: codes.Unauthenticated, principal.Agent: codes.PermissionDenied, principal.Client: codes.OK, principal.Operator: codes.OK,
	} {
		for _, at := range []string{own, main} {
			if err := ask(at, kind); status.Code(err) != want {
				t.Errorf("%s at %s: %v, want %v", kind, at, err, want)
			}
		}
	}
}

// TestTLSAgent: an agent proves itself to the cell, and serves its host without TLS. What it is trusted with reads nothing.
func TestTLSAgent(t *testing.T) {
	files := newCellFiles(t)
	a := files.start(nil)
	agent := files.start(func(c *Config) {
		c.Roles, c.Upstream, c.PlainListen = RoleList{Scribed}, a.URL(), true
		c.TLS.ClientCA = ""
		c.TLS.Cert, c.TLS.Key = files.ca.Client("web1", principal.Agent)
	})
	p, err := producer.New(agent.URL())
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Write(t.Context(), "orders", producer.Message{Payload: []byte("42")}); err != nil {
		t.Error(err)
	}
	if err := p.Close(context.Background()); err != nil {
		t.Error(err)
	}
	stolen := files.transport(principal.Agent)
	_, err = rpc.NewReadStreamClient(stolen, a.URL()).Bounds(t.Context(), &scribev1.BoundsRequest{Category: "orders"})
	if connect.CodeOf(err) != connect.CodePermissionDenied {
		t.Errorf("an agent asks what there is to read: %v", err)
	}
	_, err = rpc.NewBatchClient(stolen, a.URL()).Submit(t.Context(), &scribev1.SubmitRequest{})
	if connect.CodeOf(err) != connect.CodePermissionDenied {
		t.Errorf("an agent writes past the write proxies: %v", err)
	}
}

// TestTLSSocket: who writes over the socket of an agent that asks for certificates is known as a user of the host.
func TestTLSSocket(t *testing.T) {
	files := newCellFiles(t)
	socket := filepath.Join(t.TempDir(), "s")
	files.start(func(c *Config) { c.Socket = socket })
	transport := rpc.NewTransport(nil)
	defer transport.Close()
	_, err := rpc.NewWriteClient(transport, "unix:"+socket).Publish(t.Context(), &scribev1.PublishRequest{
		Category: "hosts", Messages: []*scribev1.PublishMessage{{Content: &scribev1.PublishMessage_Text{Text: "hello"}}},
	})
	if err != nil {
		t.Error(err)
	}
	_, err = rpc.NewControlClient(transport, "unix:"+socket).ListMembers(t.Context(), &scribev1.ListMembersRequest{})
	if connect.CodeOf(err) != connect.CodePermissionDenied || !strings.Contains(rpc.Message(err), `client "uid:`) {
		t.Errorf("a user of the host lists members: %v", err)
	}
}

// TestTLSStartMistakes: what can't work is an error at the start.
func TestTLSStartMistakes(t *testing.T) {
	files := newCellFiles(t)
	other, otherKey := certtest.New(t, "another cell", time.Now()).Server("n2")
	for name, c := range map[string]struct {
		change func(*Config)
		want   string
	}{
		"another's key":         {func(c *Config) { c.TLS.Key = otherKey }, "the key in " + otherKey + " is not that of the certificate in " + files.cert},
		"no key":                {func(c *Config) { c.TLS.Key = "" }, "tls_key (--tls-key): missing"},
		"another name":          {func(c *Config) { c.Advertise = "https://n9.example.net:7420" }, "is not for n9.example.net, where others reach this process"},
		"http in its own URL":   {func(c *Config) { c.Advertise = "http://127.0.0.1:7420" }, "want https://"},
		"client CAs alone":      {func(c *Config) { c.TLS.Cert, c.TLS.Key = "", "" }, "tls_cert (--tls-cert): missing: only a process that serves with TLS"},
		"plain for everybody":   {func(c *Config) { c.PlainListen, c.Listen, c.TLS.ClientCA = true, "0.0.0.0:0", "" }, "plain_listen (--plain-listen): 0.0.0.0:0 is reached from other hosts"},
		"open for everybody":    {func(c *Config) { c.TLS, c.Listen = tlsfiles.Config{}, "0.0.0.0:0" }, "listen (--listen): 0.0.0.0:0 is reached from other hosts, and nothing proves who calls"},
		"open by name":          {func(c *Config) { c.TLS.ClientCA, c.Listen = "", "n1.example.net:0" }, "listen (--listen): n1.example.net:0 is reached from other hosts"},
		"open Flight":           {func(c *Config) { c.TLS.ClientCA, c.Flight = "", ":0" }, "sqlserver.flight (--flight): :0 is reached from other hosts"},
		"plain and asking":      {func(c *Config) { c.PlainListen = true }, "want either plain_listen or tls_client_ca"},
		"a cell's node for all": {func(c *Config) { c.Node, c.Cluster, c.TLS.ClientCA = "n1", []string{"n1=127.0.0.1:7420"}, "" }, "tls_client_ca (--tls-client-ca): missing: the nodes' etcd is for nodes alone"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := DefaultConfig()
			cfg.Data, cfg.Listen, cfg.TLS = filepath.Join(t.TempDir(), "data"), "127.0.0.1:0", files.config()
			c.change(&cfg)
			a, err := Start(t.Context(), cfg, Options{Logger: slog.New(slog.DiscardHandler)})
			if err == nil {
				stopNow(t, a)
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v: want %q", err, c.want)
			}
		})
	}
	// A process of another cell can't join: both ends say why.
	a := files.start(nil)
	transport := rpc.NewTransport(nil, rpc.WithTLS(files.open(tlsfiles.Config{Cert: other, Key: otherKey, CA: files.ca.File})))
	defer transport.Close()
	_, err := rpc.NewControlClient(transport, a.URL()).Join(t.Context(), &scribev1.JoinRequest{})
	if connect.CodeOf(err) != connect.CodeUnauthenticated || !strings.Contains(rpc.Message(err), "signed by an authority that the server does not know") {
		t.Errorf("a process of another cell joins: %v", err)
	}
}

// TestTLSOverHostSeams: a cell serves and calls with TLS over the connections that its host makes.
func TestTLSOverHostSeams(t *testing.T) {
	files := newCellFiles(t)
	listen := memhttp.Listen()
	c := DefaultConfig()
	c.Data, c.Listen, c.TLS = filepath.Join(t.TempDir(), "data"), "127.0.0.1:7420", files.config()
	c.Advertise = "https://localhost:7420"
	a, err := Start(t.Context(), c, Options{Logger: slog.New(slog.DiscardHandler), Version: "test", Host: Host{
		Listen: func(context.Context, string, string) (net.Listener, error) { return listen, nil }, Dial: listen.Dial,
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer stopNow(t, a)
	cert, key := files.ca.Client("ada", principal.Client)
	transport := rpc.NewTransport(listen.Dial, rpc.WithTLS(files.open(tlsfiles.Config{CA: files.ca.File, Cert: cert, Key: key})))
	defer transport.Close()
	_, err = rpc.NewWriteClient(transport, "https://localhost:7420").Publish(t.Context(), &scribev1.PublishRequest{
		Category: "hosts", Messages: []*scribev1.PublishMessage{{Content: &scribev1.PublishMessage_Text{Text: "hello"}}},
	})
	if err != nil {
		t.Error(err)
	}
	// The SQL server calls the process's own address.
	status, body := request(t, transport.HTTPClient(), "GET", "https://localhost:7420/v1/query?sql="+url.QueryEscape("SELECT payload FROM hosts")+"&format=csv")
	if status != 200 || !strings.Contains(body, "hello") {
		t.Errorf("a query: %d %q", status, body)
	}
}

// rotation is a cell of two processes whose files are replaced while a program writes and another reads.
type rotation struct {
	*cellFiles
	url    string
	client tlsfiles.Config
	acked  chan int // the number of messages, when one was acknowledged
}

// TestTLSRotation replaces the certificates of servers, of clients, and the authority, under load: no call fails and no message is lost.
func TestTLSRotation(t *testing.T) {
	files := newCellFiles(t)
	dir := t.TempDir()
	// The files that processes are given, so that they can be replaced.
	put := func(name string, from ...string) string {
		path := filepath.Join(dir, name)
		certtest.Join(t, path, from...)
		return path
	}
	before, after := files.ca, certtest.New(t, "next", time.Now())
	shared := tlsfiles.Config{Cert: put("server.pem", files.cert), Key: put("server.key", files.key), CA: put("ca.pem", before.File), ClientCA: put("client-ca.pem", before.File)}
	oldCert, oldKey := before.Client("ada", principal.Client)
	r := &rotation{cellFiles: files, acked: make(chan int), client: tlsfiles.Config{Cert: put("client.pem", oldCert), Key: put("client.key", oldKey), CA: shared.CA}}
	store := files.start(func(c *Config) {
		c.TLS = shared
		c.Roles = RoleList{ControlPlane, Metalog, Batcher, ReadStream, ReadProxy}
	})
	front := files.start(func(c *Config) {
		c.TLS, c.Roles, c.Control = shared, RoleList{WriteProxy}, store.URL()
	})
	r.url = front.URL()
	transport := rpc.NewTransport(nil, rpc.WithTLS(files.open(r.client)))
	defer transport.Close()
	control := rpc.NewControlClient(transport, r.url)
	if _, err := control.CreateCategory(t.Context(), &scribev1.CreateCategoryRequest{Category: &scribev1.Category{Name: "orders"}}); err != nil {
		t.Fatal(err)
	}
	cell := discovery.New(transport, r.url, nil)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var running sync.WaitGroup
	running.Go(func() { r.write(ctx, cell) })
	r.checkStep("at the beginning")
	for _, step := range []struct {
		name string
		do   func()
	}{
		{"a new certificate for the servers", func() {
			cert, key := before.Server("n1")
			put("server.key", key)
			put("server.pem", cert)
		}},
		{"a new certificate for the client", func() {
			cert, key := before.Client("ada", principal.Client)
			put("client.key", key)
			put("client.pem", cert)
		}},
		{"both authorities", func() {
			put("ca.pem", before.File, after.File)
			put("client-ca.pem", before.File, after.File)
		}},
		{"the servers' certificate of the new authority", func() {
			cert, key := after.Server("n1")
			put("server.pem", cert)
			put("server.key", key)
		}},
		{"the client's certificate of the new authority", func() {
			cert, key := after.Client("ada", principal.Client)
			put("client.pem", cert)
			put("client.key", key)
		}},
		{"the new authority alone", func() {
			put("ca.pem", after.File)
			put("client-ca.pem", after.File)
		}},
	} {
		step.do()
		files.look()
		r.checkStep(step.name)
	}
	former := rpc.NewTransport(nil, rpc.WithTLS(files.open(tlsfiles.Config{CA: after.File, Cert: oldCert, Key: oldKey})))
	defer former.Close()
	if _, err := rpc.NewControlClient(former, r.url).GetStatus(t.Context(), &scribev1.GetStatusRequest{}); connect.CodeOf(err) != connect.CodeUnauthenticated {
		t.Errorf("a certificate of the former authority: %v", err)
	}
	stop()
	total := 0
	for n := range r.acked {
		total = n
	}
	running.Wait()
	r.read(cell, total)
}

// write writes numbered messages one after another until ctx ends. Each must be acknowledged at its first try.
func (r *rotation) write(ctx context.Context, cell *discovery.Cell) {
	defer close(r.acked)
	p, err := producer.New("", producer.WithService(cell.Write()), producer.WithCategories(cell.Control()), producer.WithRetries(0), producer.WithLinger(0))
	if err != nil {
		r.t.Error(err)
		return
	}
	for n := 1; ; n++ {
		if err := p.Write(context.WithoutCancel(ctx), "orders", producer.Message{Payload: fmt.Appendf(nil, "%d", n)}); err != nil {
			r.t.Errorf("message %d: %v", n, err)
			break
		}
		select {
		case r.acked <- n:
			continue
		case <-ctx.Done():
		}
		r.acked <- n
		break
	}
	if err := p.Close(context.WithoutCancel(ctx)); err != nil {
		r.t.Error(err)
	}
}

// checkStep requires that the writer goes on, and that a program which starts now gets in with what the files have.
func (r *rotation) checkStep(name string) {
	r.t.Helper()
	for range 20 {
		if _, ok := <-r.acked; !ok {
			r.t.Fatalf("%s: the writer has failed", name)
		}
	}
	fresh := rpc.NewTransport(nil, rpc.WithTLS(r.open(r.client)))
	defer fresh.Close()
	if _, err := rpc.NewControlClient(fresh, r.url).GetStatus(r.t.Context(), &scribev1.GetStatusRequest{}); err != nil {
		r.t.Fatalf("%s: a new connection: %v", name, err)
	}
	for range 20 {
		if _, ok := <-r.acked; !ok {
			r.t.Fatalf("%s: the writer has failed", name)
		}
	}
}

// read requires that all messages are there, each once.
func (r *rotation) read(cell *discovery.Cell, total int) {
	r.t.Helper()
	c, err := consumer.New("", "orders", consumer.WithServices(cell.ReadStream(), cell.ReadProxy()), consumer.WithControl(cell.Control()),
		consumer.WithStart(consumer.Earliest()), consumer.WithUntilEnd())
	if err != nil {
		r.t.Fatal(err)
	}
	seen := map[string]bool{}
	for record, err := range c.Records(r.t.Context()) {
		if err != nil {
			r.t.Fatal(err)
		}
		if seen[string(record.Payload)] {
			r.t.Errorf("message %s is there twice", record.Payload)
		}
		seen[string(record.Payload)] = true
	}
	if len(seen) != total {
		r.t.Errorf("%d messages were acknowledged, and %d are there", total, len(seen))
	}
	if err := c.Close(); err != nil {
		r.t.Error(err)
	}
}

// TestTLSNode: a node's etcd speaks TLS to nodes only, and a folder that began with TLS does not go on without.
func TestTLSNode(t *testing.T) {
	files := newCellFiles(t)
	c := DefaultConfig()
	c.Data, c.TLS = filepath.Join(t.TempDir(), "data"), files.config()
	c = oneNode(t, c)
	a, err := Start(t.Context(), c, Options{Logger: slog.New(slog.DiscardHandler), Version: "test"})
	if err != nil {
		t.Fatal(err)
	}
	cert, key := files.ca.Client("mallory", principal.Operator)
	for name, tried := range map[string]struct{ cert, key, address string }{
		"of clients":          {cert, key, c.nodePlace().etcdClient()},
		"of nodes":            {cert, key, c.nodePlace().etcdPeer()},
		"without certificate": {"", "", c.nodePlace().etcdClient()},
	} {
		raw, err := new(net.Dialer).DialContext(t.Context(), "tcp", tried.address)
		if err != nil {
			t.Fatal(err)
		}
		conn, err := files.open(tlsfiles.Config{CA: files.ca.File, Cert: tried.cert, Key: tried.key}).Handshake(t.Context(), raw, "127.0.0.1", "h2")
		if err == nil { // the client has done its part when the server looks at the certificate
			_, err = conn.Read(make([]byte, 1))
			_ = conn.Close()
		}
		if err == nil || !strings.Contains(err.Error(), "remote error: tls:") {
			t.Errorf("an operator at the port of etcd %s: %v", name, err)
		}
	}
	operator := files.transport(principal.Operator)
	if res, err := rpc.NewNodeClient(operator, a.URL()).ListNodes(t.Context(), &scribev1.ListNodesRequest{}); err != nil || len(res.GetNodes()) != 1 || res.GetNodes()[0].GetError() != "" {
		t.Errorf("%v, %v", res, err)
	}
	if _, err := rpc.NewNodeClient(files.transport(principal.Client), a.URL()).ListNodes(t.Context(), &scribev1.ListNodesRequest{}); connect.CodeOf(err) != connect.CodePermissionDenied {
		t.Errorf("a client lists nodes: %v", err)
	}
	_, err = rpc.NewWriteClient(operator, a.URL()).Publish(t.Context(), &scribev1.PublishRequest{
		Category: "hosts", Messages: []*scribev1.PublishMessage{{Content: &scribev1.PublishMessage_Text{Text: "hello"}}},
	})
	if err != nil {
		t.Errorf("a write: %v", err)
	}
	stopNow(t, a)
	c.TLS = tlsfiles.Config{}
	again, err := Start(t.Context(), c, Options{Logger: slog.New(slog.DiscardHandler)})
	if err == nil {
		stopNow(t, again)
	}
	if err == nil || errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "began with TLS, and this node starts without TLS") {
		t.Errorf("without TLS: %v", err)
	}
}
