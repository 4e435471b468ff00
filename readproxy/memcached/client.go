package memcached

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/cespare/xxhash/v2"
)

// Errors that callers distinguish, in addition to those of contexts and connections.
var (
	// ErrUnavailable means that the key's server failed several times in a row, and was not asked.
	ErrUnavailable = errors.New("memcached: server unavailable after repeated failures")
	// ErrProtocol means that a server's answer violates the protocol.
	ErrProtocol = errors.New("memcached: unexpected answer")
	// ErrTooLarge means that a value exceeds Config.ValueBytes, or the limit of the server.
	ErrTooLarge = errors.New("memcached: value too large")
	// ErrClosed means that the client was closed.
	ErrClosed = errors.New("memcached: closed")
)

// Client is a cache over servers. It is safe for concurrent use.
type Client struct {
	cfg     Config
	servers []*serverConns
	// dial is net.Dialer's method, or a replacement in tests.
	dial func(ctx context.Context, network, addr string) (net.Conn, error)
}

// After trip failures in a row a server is not called for firstPause, which doubles up to longestPause.
const (
	trip         = 3
	firstPause   = time.Second
	longestPause = 30 * time.Second
)

// New returns a client, which connects on demand. Close releases its connections.
func New(cfg Config) (*Client, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	c := &Client{cfg: cfg, dial: (&net.Dialer{}).DialContext}
	for _, addr := range cfg.Servers {
		c.servers = append(c.servers, newServer(addr, cfg.Connections))
	}
	return c, nil
}

// Close closes the connections; running calls fail. Further calls have no effect.
func (c *Client) Close() {
	for _, s := range c.servers {
		s.closeConns()
	}
}

// Get fills dst with the value of key, whose length must be that of dst, and reports whether the value was found. If not, or
// after an error, the content of dst is undefined.
func (c *Client) Get(ctx context.Context, key string, dst []byte) (found bool, err error) {
	if len(dst) > c.cfg.ValueBytes {
		return false, nil // no such value was stored
	}
	err = c.callServer(ctx, key, func(x *clientConn) error {
		keys := c.itemKeys(key, len(dst))
		if err := x.writeParts([]byte("get " + strings.Join(keys, " ") + "\r\n")); err != nil {
			return err
		}
		n, err := readValues(x.r, keys, c.cutValue(dst))
		found = n == len(keys)
		return err
	})
	return found && err == nil, err
}

// Set stores a value for ttl, which counts in whole seconds, from 1 second to 30 days. The value must not change until Set
// returns. The server may evict it at any time. After an error it may be stored or not. If the key had a value before, it then
// has the old value, the new one or a mixture, which a reader detects by its checksum.
func (c *Client) Set(ctx context.Context, key string, value []byte, ttl time.Duration) error {
	if len(value) > c.cfg.ValueBytes {
		return fmt.Errorf("%w: %d bytes, at most %d", ErrTooLarge, len(value), c.cfg.ValueBytes)
	}
	seconds := int(min(max(ttl, time.Second), maxTTL).Seconds())
	var refused error
	err := c.callServer(ctx, key, func(x *clientConn) error {
		keys := c.itemKeys(key, len(value))
		pieces := c.cutValue(value)
		out := make([][]byte, 0, 3*len(keys))
		for i, k := range keys {
			out = append(out, fmt.Appendf(nil, "set %s 0 %d %d\r\n", k, seconds, len(pieces[i])), pieces[i], crlf)
		}
		if err := x.writeParts(out...); err != nil {
			return err
		}
		for range keys {
			answer, err := readLine(x.r)
			switch {
			case err != nil:
				return err
			case string(answer) == "STORED":
			case strings.HasPrefix(string(answer), "SERVER_ERROR object too large"):
				refused = fmt.Errorf("%w: the server answers %q: raise its limit with -I", ErrTooLarge, answer)
			case strings.HasPrefix(string(answer), "SERVER_ERROR out of memory"):
				refused = fmt.Errorf("memcached: the server answers %q", answer)
			default:
				return fmt.Errorf("%w to set: %q", ErrProtocol, firstBytes(answer))
			}
		}
		return nil
	})
	return errors.Join(err, refused)
}

// Delete removes the value of a key, if there is one. length is the value's length.
func (c *Client) Delete(ctx context.Context, key string, length int) error {
	return c.callServer(ctx, key, func(x *clientConn) error {
		// Without its first item the value is not found.
		if err := x.writeParts([]byte("delete " + c.itemKeys(key, min(length, 1))[0] + "\r\n")); err != nil {
			return err
		}
		answer, err := readLine(x.r)
		if err == nil && string(answer) != "DELETED" && string(answer) != "NOT_FOUND" {
			err = fmt.Errorf("%w to delete: %q", ErrProtocol, firstBytes(answer))
		}
		return err
	})
}

// UnavailableServers returns the number of servers that are not called at present.
func (c *Client) UnavailableServers() int {
	n := 0
	for _, s := range c.servers {
		if s.breaker.Tripped() {
			n++
		}
	}
	return n
}

// callServer makes a call to the server of a key. The connection is reused if the call succeeds.
func (c *Client) callServer(ctx context.Context, key string, call func(*clientConn) error) error {
	if err := checkKey(key); err != nil {
		return err
	}
	s := c.pickServer(key)
	if !s.breaker.Allow(time.Now()) {
		return fmt.Errorf("%w: %s", ErrUnavailable, s.addr)
	}
	parent := ctx
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	x, err := s.takeConn(ctx, c.dial)
	busy := errors.Is(err, errBusy)
	if err == nil {
		if err = call(x); err != nil {
			x.broken = true
		}
		s.returnConn(x)
	}
	// A caller that gives up says nothing about the server, and neither does a lack of free connections. But a call that the
	// breaker allowed has to report its result.
	s.breaker.ReportResult(time.Now(), err == nil || busy || parent.Err() != nil)
	if err != nil {
		return fmt.Errorf("memcached %s: %w", s.addr, err)
	}
	return nil
}

// pickServer returns the server with the highest rendezvous weight for a key.
func (c *Client) pickServer(key string) *serverConns {
	best, weight := c.servers[0], uint64(0)
	if len(c.servers) == 1 {
		return best
	}
	for _, s := range c.servers {
		d := xxhash.New()
		_, _ = d.WriteString(s.addr) // never fails
		_, _ = d.WriteString("\x00" + key)
		if w := d.Sum64(); w >= weight {
			best, weight = s, w
		}
	}
	return best
}

func checkKey(key string) error {
	if key == "" || len(key) > maxKey-maxPrefix-len("/999") || strings.ContainsFunc(key, func(r rune) bool { return !strings.ContainsRune(keyRunes, r) }) {
		return fmt.Errorf("memcached: invalid key %q: want 1 to %d letters, digits and any of . : _ -", key, maxKey-maxPrefix-len("/999"))
	}
	return nil
}

// itemKeys returns the keys of the items of a value of n bytes; an empty value has one.
func (c *Client) itemKeys(key string, n int) []string {
	count := max((n+c.cfg.ItemBytes-1)/c.cfg.ItemBytes, 1)
	keys := make([]string, count)
	for i := range keys {
		keys[i] = fmt.Sprintf("%s%s/%d", c.cfg.Prefix, key, i)
	}
	return keys
}

// cutValue divides a value into its items.
func (c *Client) cutValue(value []byte) [][]byte {
	pieces := make([][]byte, 0, len(value)/c.cfg.ItemBytes+1)
	for len(value) > c.cfg.ItemBytes {
		pieces, value = append(pieces, value[:c.cfg.ItemBytes:c.cfg.ItemBytes]), value[c.cfg.ItemBytes:]
	}
	return append(pieces, value)
}
