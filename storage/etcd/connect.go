package etcd

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
)

// Config says how to reach a cluster.
type Config struct {
	// Endpoints are the client URLs of the members, http:// or https://, at least one.
	Endpoints []string
	// TLS is needed for https; nil takes the system's authorities.
	TLS *tls.Config
	// User and Password log in where the cluster has authentication; empty for none.
	User, Password string
	// Logger gets the client's messages, below the level of warnings: who calls reports what fails. Nil discards them.
	Logger *slog.Logger
}

const (
	// keepAliveEvery and keepAliveTimeout bound how long a connection to a member that is cut off looks alive.
	keepAliveEvery   = 2 * time.Second
	keepAliveTimeout = 2 * time.Second
	// dialTimeout bounds one attempt to connect.
	dialTimeout = 2 * time.Second
	// maxBackoff bounds the time between two attempts to connect: a member that is back is found soon.
	maxBackoff = time.Second
	// maxMessage bounds an answer in bytes: pages of package kv and of entries are smaller.
	maxMessage = 64 << 20
	// maxRequest bounds a request in bytes. The members of this program take 2 MiB, those of others 1.5 MiB.
	maxRequest = 2 << 20
)

// Validate reports every violation.
func (c *Config) Validate() error {
	var errs []error
	if len(c.Endpoints) == 0 {
		errs = append(errs, errors.New("no endpoint: want http://HOST:PORT of at least one member"))
	}
	for i, e := range c.Endpoints {
		if u, err := url.Parse(e); err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
			errs = append(errs, fmt.Errorf("invalid endpoint %q: want http://HOST:PORT or https://HOST:PORT", e))
		}
		if slices.Contains(c.Endpoints[:i], e) {
			errs = append(errs, fmt.Errorf("endpoint %q is given twice", e))
		}
	}
	if (c.User == "") != (c.Password == "") {
		errs = append(errs, errors.New("a user and a password go together"))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("etcd: invalid configuration: %w", err)
	}
	return nil
}

// Connect returns a client of a cluster, which the caller closes. Members that are away are no error: calls wait for one that is there until
// their contexts end. Only a login waits here, for a few seconds.
func Connect(c Config) (*clientv3.Client, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	client, err := clientv3.New(clientv3.Config{
		Endpoints: c.Endpoints, TLS: c.TLS, Username: c.User, Password: c.Password,
		DialTimeout: dialTimeout, DialKeepAliveTime: keepAliveEvery, DialKeepAliveTimeout: keepAliveTimeout,
		MaxCallSendMsgSize: maxRequest, MaxCallRecvMsgSize: maxMessage,
		PermitWithoutStream: true, Logger: NewZapLogger(c.Logger, clientLevel),
		DialOptions: []grpc.DialOption{grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: maxBackoff},
			MinConnectTimeout: dialTimeout,
		})},
	})
	if err != nil {
		return nil, fmt.Errorf("etcd: connect to %v: %w", c.Endpoints, err)
	}
	return client, nil
}
