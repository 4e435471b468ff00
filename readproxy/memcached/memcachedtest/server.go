// Package memcachedtest is a memcached server for tests, in the test's own process: the part of the protocol that package memcached
// speaks, without expiry and eviction, and with faults. What a real server does is tested in test/memcached.
package memcachedtest

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// Server is a fake memcached on a port of the loopback.
type Server struct {
	// Addr is where it listens, host:port.
	Addr string

	listener net.Listener
	running  sync.WaitGroup
	mu       struct {
		sync.Mutex
		items map[string][]byte
		conns map[net.Conn]struct{}
		calls map[string]int
		limit int
		hang  bool
		hung  chan struct{} // closed when it goes on
		// answer replaces what is sent for a get; nil = the truth.
		answer func(truth []byte) []byte
	}
}

// Start starts one, which ends with the test.
func Start(t testing.TB) *Server {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{Addr: l.Addr().String(), listener: l}
	s.mu.items, s.mu.conns, s.mu.calls, s.mu.limit = map[string][]byte{}, map[net.Conn]struct{}{}, map[string]int{}, 1<<20
	s.running.Go(s.accept)
	t.Cleanup(s.Stop)
	return s
}

// Stop ends it: connections break, new ones are refused. Repeating it is harmless.
func (s *Server) Stop() {
	s.Hang(false)
	_ = s.listener.Close()
	s.Cut()
	s.running.Wait()
}

// Cut breaks every connection.
func (s *Server) Cut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.mu.conns {
		_ = c.Close()
	}
}

// Hang makes it take everything and answer nothing, or go on.
func (s *Server) Hang(hang bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if hang && !s.mu.hang {
		s.mu.hung = make(chan struct{})
	} else if !hang && s.mu.hang {
		close(s.mu.hung)
	}
	s.mu.hang = hang
}

// Answer changes what is sent for a get; nil sends the truth.
func (s *Server) Answer(fn func(truth []byte) []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.answer = fn
}

// Limit is the largest item that is taken, 1 MiB at first.
func (s *Server) Limit(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.limit = n
}

// Change changes every item.
func (s *Server) Change(fn func(item []byte) []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, v := range s.mu.items {
		s.mu.items[k] = fn(append([]byte(nil), v...))
	}
}

// Drop removes every item whose key ends so; "" removes all.
func (s *Server) Drop(suffix string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k := range s.mu.items {
		if strings.HasSuffix(k, suffix) {
			delete(s.mu.items, k)
		}
	}
}

// Items is how many there are.
func (s *Server) Items() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.mu.items)
}

// Calls is how often a command came: get, set or delete.
func (s *Server) Calls(command string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.calls[command]
}

// Connections is how many there are.
func (s *Server) Connections() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.mu.conns)
}

func (s *Server) accept() {
	for {
		c, err := s.listener.Accept()
		if err != nil {
			return
		}
		s.mu.Lock()
		s.mu.conns[c] = struct{}{}
		s.mu.Unlock()
		s.running.Go(func() {
			s.serve(c)
			_ = c.Close()
			s.mu.Lock()
			delete(s.mu.conns, c)
			s.mu.Unlock()
		})
	}
}

func (s *Server) serve(c net.Conn) {
	r := bufio.NewReader(c)
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return
		}
		out, ok := s.command(strings.Fields(line), r)
		s.mu.Lock()
		hang, hung := s.mu.hang, s.mu.hung
		s.mu.Unlock()
		if hang {
			<-hung
		}
		if _, err := c.Write(out); err != nil || !ok {
			return
		}
	}
}

func (s *Server) command(f []string, r io.Reader) (out []byte, ok bool) {
	if len(f) == 0 {
		return []byte("ERROR\r\n"), false
	}
	switch {
	case f[0] == "get":
		return s.get(f[1:]), true
	case f[0] == "set" && len(f) == 5:
		return s.set(f, r)
	case f[0] == "delete" && len(f) == 2:
		s.mu.Lock()
		defer s.mu.Unlock()
		s.mu.calls["delete"]++
		if _, there := s.mu.items[f[1]]; !there {
			return []byte("NOT_FOUND\r\n"), true
		}
		delete(s.mu.items, f[1])
		return []byte("DELETED\r\n"), true
	default:
		return []byte("ERROR\r\n"), false
	}
}

func (s *Server) get(keys []string) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.calls["get"]++
	var out []byte
	for _, k := range keys {
		if v, there := s.mu.items[k]; there {
			out = fmt.Appendf(out, "VALUE %s 0 %d\r\n%s\r\n", k, len(v), v)
		}
	}
	out = append(out, "END\r\n"...)
	if s.mu.answer != nil {
		out = s.mu.answer(out)
	}
	return out
}

func (s *Server) set(f []string, r io.Reader) (out []byte, ok bool) {
	n, err := strconv.ParseUint(f[4], 10, 31)
	if err != nil {
		return []byte("CLIENT_ERROR bad data chunk\r\n"), false
	}
	data := make([]byte, n+2)
	if _, err := io.ReadFull(r, data); err != nil {
		return nil, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.calls["set"]++
	if int(n) > s.mu.limit { //nolint:gosec // 31 bits
		return []byte("SERVER_ERROR object too large for cache\r\n"), true
	}
	s.mu.items[f[1]] = data[:n]
	return []byte("STORED\r\n"), true
}
