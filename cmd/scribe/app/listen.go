package app

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"scribe/internal/transport/rpc"
)

// listenTCP takes the address that a flag gives, with an error that says what to do.
func (a *App) listenTCP(ctx context.Context, flag, addr string) (net.Listener, error) {
	l, err := a.opts.Host.Listen(ctx, "tcp", addr)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("listen on %s: another process has that address; give another %s, or port 0 for a free one: %w", addr, flag, syscall.EADDRINUSE)
	case errors.Is(err, syscall.EACCES):
		return nil, fmt.Errorf("listen on %s: this user may not take that port; give one above 1023: %w", addr, syscall.EACCES)
	case err != nil:
		return nil, fmt.Errorf("listen on %s: %w", addr, err)
	}
	return a.bounds.BoundListener(l), nil
}

// newBounds returns what callers may hold of the process.
func (a *App) newBounds() (*rpc.Bounds, error) {
	cfg := rpc.BoundsConfig{Connections: a.cfg.Connections, AddressConnections: a.cfg.AddressConnections}
	if most := a.opts.Host.descriptors; most > 0 {
		cfg.Connections = min(cfg.Connections, most/4*3)
	}
	if a.cfg.enforcesAccess() {
		cfg.CallerRequests = a.cfg.CallerRequests
	}
	b := rpc.NewBounds(cfg)
	list := []prometheus.Collector{prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: "scribe", Subsystem: "server", Name: "connections", Help: "TCP connections that are open.",
	}, func() float64 { return float64(b.Connections()) })}
	for name := range b.Refused() {
		list = append(list, prometheus.NewCounterFunc(prometheus.CounterOpts{
			Namespace: "scribe", Subsystem: "server", Name: "refused_total", ConstLabels: prometheus.Labels{"bound": name},
			Help: "Connections (connections, address) and requests (caller) that were refused since a bound was reached.",
		}, func() float64 { return float64(b.Refused()[name]) }))
	}
	var err error
	for _, c := range list {
		err = errors.Join(err, a.registry.Register(c))
	}
	return b, err
}

// listenUnix takes a socket path. One that a dead process left behind is replaced; one that answers is not.
func listenUnix(ctx context.Context, path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil { //nolint:gosec // producers of other users must reach the socket
		return nil, fmt.Errorf("folder of socket %s: %w", path, err)
	}
	if info, err := os.Lstat(path); err == nil {
		if info.Mode()&fs.ModeSocket == 0 {
			return nil, fmt.Errorf("socket %s: a file that is not a socket stands there; move it or give another --socket", path)
		}
		d := net.Dialer{Timeout: time.Second}
		if c, err := d.DialContext(ctx, "unix", path); err == nil {
			return nil, errors.Join(fmt.Errorf("socket %s: another process serves there", path), c.Close())
		}
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("remove the stale socket %s: %w", path, err)
		}
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen on socket %s: %w", path, err)
	}
	if err := os.Chmod(path, 0o666); err != nil { //nolint:gosec // every producer of the host may write
		return nil, errors.Join(fmt.Errorf("open socket %s to all users: %w", path, err), l.Close())
	}
	return l, nil
}
