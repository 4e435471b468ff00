package memcached

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
	"time"

	"scribe/internal/role/admission"
)

// serverConns has the connections to one server.
type serverConns struct {
	addr    string
	breaker *admission.Breaker
	// slots holds a token for each connection that may be in use.
	slots chan struct{}

	mu struct {
		sync.Mutex
		idle   []*clientConn // the most recently used one last
		all    map[*clientConn]struct{}
		closed bool
	}
}

func newServer(addr string, connections int) *serverConns {
	s := &serverConns{addr: addr, breaker: admission.NewBreaker(trip, firstPause, longestPause), slots: make(chan struct{}, connections)}
	s.mu.all = make(map[*clientConn]struct{})
	return s
}

// clientConn is a connection. One call at a time uses it.
type clientConn struct {
	c net.Conn
	r *bufio.Reader
	// broken: the connection has an answer that was not read completely.
	broken bool
}

func (x *clientConn) writeParts(parts ...[]byte) error {
	buffers := net.Buffers(parts)
	_, err := buffers.WriteTo(x.c)
	return err
}

// errBusy means that all connections were in use.
var errBusy = errors.New("memcached: every connection is in use")

// takeConn returns a connection whose deadline is that of ctx.
func (s *serverConns) takeConn(ctx context.Context, dial func(context.Context, string, string) (net.Conn, error)) (*clientConn, error) {
	select {
	case s.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: %w", errBusy, context.Cause(ctx))
	}
	x, err := s.openConn(ctx, dial)
	if err != nil {
		<-s.slots
		return nil, err
	}
	deadline, _ := ctx.Deadline()
	if err := x.c.SetDeadline(deadline); err != nil {
		x.broken = true
		s.returnConn(x)
		return nil, err
	}
	return x, nil
}

func (s *serverConns) openConn(ctx context.Context, dial func(context.Context, string, string) (net.Conn, error)) (*clientConn, error) {
	s.mu.Lock()
	if s.mu.closed {
		s.mu.Unlock()
		return nil, ErrClosed
	}
	if n := len(s.mu.idle); n > 0 {
		x := s.mu.idle[n-1]
		s.mu.idle = s.mu.idle[:n-1]
		s.mu.Unlock()
		return x, nil
	}
	s.mu.Unlock()
	c, err := dial(ctx, "tcp", s.addr)
	if err != nil {
		return nil, err
	}
	x := &clientConn{c: c, r: bufio.NewReaderSize(c, 4<<10)}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.closed {
		_ = c.Close()
		return nil, ErrClosed
	}
	s.mu.all[x] = struct{}{}
	return x, nil
}

// returnConn returns a connection to the pool.
func (s *serverConns) returnConn(x *clientConn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	<-s.slots
	if x.broken || s.mu.closed {
		// The server may have been restarted: the other idle connections are probably dead too, and each would fail a call.
		for _, dead := range append(s.mu.idle, x) {
			delete(s.mu.all, dead)
			_ = dead.c.Close()
		}
		s.mu.idle = nil
		return
	}
	_ = x.c.SetDeadline(time.Time{})
	s.mu.idle = append(s.mu.idle, x)
}

func (s *serverConns) closeConns() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.closed = true
	s.mu.idle = nil
	for x := range s.mu.all {
		_ = x.c.Close() // this ends a running read
	}
	clear(s.mu.all)
}

var crlf = []byte("\r\n")

// maxLine bounds a line of an answer: VALUE, a key, numbers.
const maxLine = 1024

// readLine reads a line without its line ending. It is valid until the next read.
func readLine(r *bufio.Reader) ([]byte, error) {
	line, err := r.ReadSlice('\n')
	switch {
	case errors.Is(err, bufio.ErrBufferFull), err == nil && len(line) > maxLine:
		return nil, fmt.Errorf("%w: a line of more than %d bytes", ErrProtocol, maxLine)
	case errors.Is(err, io.EOF):
		return nil, io.ErrUnexpectedEOF
	case err != nil:
		return nil, err
	case !bytes.HasSuffix(line, crlf):
		return nil, fmt.Errorf("%w: %q", ErrProtocol, firstBytes(line))
	}
	return line[:len(line)-len(crlf)], nil
}

// readValues reads the answer to a get of keys into pieces, which have the values' lengths, and returns how many were found. A
// value of another length is an error: its key determines the length.
func readValues(r *bufio.Reader, keys []string, pieces [][]byte) (found int, err error) {
	for next := 0; ; {
		line, err := readLine(r)
		if err != nil {
			return 0, err
		}
		if string(line) == "END" {
			return found, nil
		}
		fields := bytes.Split(line, []byte(" "))
		if len(fields) != 4 || string(fields[0]) != "VALUE" {
			return 0, fmt.Errorf("%w to get: %q", ErrProtocol, firstBytes(line))
		}
		for next < len(keys) && keys[next] != string(fields[1]) {
			next++ // not found
		}
		if next == len(keys) {
			return 0, fmt.Errorf("%w to get: a value that was not asked for, %q", ErrProtocol, firstBytes(line))
		}
		n, err := strconv.ParseUint(string(fields[3]), 10, 32)
		if err != nil || n != uint64(len(pieces[next])) {
			return 0, fmt.Errorf("%w to get: %q, want %d bytes", ErrProtocol, firstBytes(line), len(pieces[next]))
		}
		if _, err := io.ReadFull(r, pieces[next]); err != nil {
			return 0, fmt.Errorf("the answer is cut off: %w", err)
		}
		end, err := readLine(r)
		if err != nil {
			return 0, err
		}
		if len(end) > 0 {
			return 0, fmt.Errorf("%w to get: a value is longer than announced", ErrProtocol)
		}
		found++
		next++
	}
}

// firstBytes returns the beginning of b, for errors.
func firstBytes(b []byte) []byte { return b[:min(len(b), 100)] }
