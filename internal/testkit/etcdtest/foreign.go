package etcdtest

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"google.golang.org/grpc"

	"scribe/storage/etcd"
)

// Foreign is an etcd as others run it: one member that serves with TLS and wants no certificates of clients, who log in instead. Its users are
// Root, who has the role root, and Limited, who may read and write the keys below scribe/CELL/ of one cell.
type Foreign struct {
	tb testing.TB
	// URL is where clients reach it.
	URL string
	ca  string
}

// The users of a Foreign, and their password.
const (
	Root     = "root"
	Limited  = "scribe"
	Password = "secret" //nolint:gosec // of tests
)

// StartForeign starts one with the files of a certificate that an authority signed. It ends with the test.
func StartForeign(tb testing.TB, ca, cert, key, cell string) *Foreign {
	tb.Helper()
	client, peer := url.URL{Scheme: "https", Host: reserve(tb)}, url.URL{Scheme: "http", Host: reserve(tb)}
	c := embed.NewConfig()
	c.Name, c.Dir = "foreign", filepath.Join(tb.TempDir(), "foreign")
	c.ListenClientUrls, c.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	c.ListenPeerUrls, c.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
	c.InitialCluster = c.Name + "=" + peer.String()
	c.ClientTLSInfo = transport.TLSInfo{CertFile: cert, KeyFile: key}
	c.MaxRequestBytes, c.EnableGRPCGateway = 2<<20, false
	c.BcryptCost = 4 // the least: with the usual one a login takes seconds under the race detector
	c.ZapLoggerBuilder = embed.NewZapLoggerBuilder(etcd.NewZapLogger(nil, nil))
	var mu sync.Mutex
	var services []*grpc.Server
	c.ServiceRegister = func(s *grpc.Server) {
		mu.Lock()
		defer mu.Unlock()
		services = append(services, s)
	}
	server, err := embed.StartEtcd(c)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		mu.Lock()
		defer mu.Unlock()
		for _, s := range services { // Close would wait for their watches
			s.Stop()
		}
		server.Server.HardStop()
		server.Close()
	})
	select {
	case <-server.Server.ReadyNotify():
	case <-tb.Context().Done():
		tb.Fatal("etcdtest: etcd did not become ready")
	}
	f := &Foreign{tb: tb, URL: client.String(), ca: ca}
	if err := f.addUsers(tb.Context(), cell); err != nil {
		tb.Fatal(err)
	}
	return f
}

// addUsers does what docs/operations.md tells operators to do.
func (f *Foreign) addUsers(ctx context.Context, cell string) error {
	c := f.connect("", "")
	prefix := "scribe/" + cell + "/"
	for _, change := range []func() error{
		func() error { _, err := c.UserAdd(ctx, Root, Password); return err },
		func() error { _, err := c.UserGrantRole(ctx, Root, "root"); return err },
		func() error { _, err := c.RoleAdd(ctx, Limited); return err },
		func() error {
			_, err := c.RoleGrantPermission(ctx, Limited, prefix, clientv3.GetPrefixRangeEnd(prefix), clientv3.PermissionType(clientv3.PermReadWrite))
			return err
		},
		func() error { _, err := c.UserAdd(ctx, Limited, Password); return err },
		func() error { _, err := c.UserGrantRole(ctx, Limited, Limited); return err },
		func() error { _, err := c.AuthEnable(ctx); return err },
	} {
		if err := change(); err != nil {
			return err
		}
	}
	return nil
}

// Client returns a new client that is logged in as a user, and closed with the test.
func (f *Foreign) Client(user string) *clientv3.Client {
	f.tb.Helper()
	return f.connect(user, Password)
}

func (f *Foreign) connect(user, password string) *clientv3.Client {
	f.tb.Helper()
	pem, err := os.ReadFile(f.ca)
	if err != nil {
		f.tb.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	client, err := etcd.Connect(etcd.Config{Endpoints: []string{f.URL}, TLS: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, User: user, Password: password})
	if err != nil {
		f.tb.Fatal(err)
	}
	f.tb.Cleanup(func() { _ = client.Close() })
	return client
}
