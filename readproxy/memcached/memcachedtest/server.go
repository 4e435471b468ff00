// Package memcachedtest is an in-process memcached server for tests. It implements the part of the protocol that package
// memcached uses, without expiry and eviction, and injects faults. test/memcached tests the client with a real server.
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
	// Addr is the address of the server, host:port.
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
		hung  chan struct{} // closed when the server continues
		// answer replaces the answer to a get; nil sends the correct one.
		answer func(truth []byte) []byte
	}
}

// Start starts a server, which stops at the end of the test.
func Start(t testing.TB) *Server {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{Addr: l.Addr().String(), listener: l}
	s.mu.items, s.mu.conns, s.mu.calls, s.mu.limit = map[string][]byte{}, map[net.Conn]struct{}{}, map[string]int{}, 1<<20
	s.running.Go(s.acceptConns)
	t.Cleanup(s.Stop)
	return s
}

// Stop stops the server: connections break, new ones are refused. Further calls have no effect.
func (s *Server) Stop() {
	s.Hang(false)
	_ = s.listener.Close()
	s.CutConnections()
	s.running.Wait()
}

// CutConnections breaks every connection.
func (s *Server) CutConnections() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.mu.conns {
		_ = c.Close()
	}
}

// Hang makes the server read requests without answering, or continue.
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

// ReplaceAnswers replaces the answers to gets; nil restores the correct ones.
func (s *Server) ReplaceAnswers(fn func(truth []byte) []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.answer = fn
}

// LimitItems sets the size of the largest accepted item, initially 1 MiB.
func (s *Server) LimitItems(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.limit = n
}

// ChangeItems changes every item.
func (s *Server) ChangeItems(fn func(item []byte) []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, v := range s.mu.items {
		s.mu.items[k] = fn(append([]byte(nil), v...))
	}
}

// DropItems removes every item whose key ends with suffix; "" removes all.
func (s *Server) DropItems(suffix string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k := range s.mu.items {
		if strings.HasSuffix(k, suffix) {
			delete(s.mu.items, k)
		}
	}
}

// CountItems returns the number of items.
func (s *Server) CountItems() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.mu.items)
}

// CountCalls returns the number of calls of a command: get, set or delete.
func (s *Server) CountCalls(command string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.calls[command]
}

// CountConnections returns the number of connections.
func (s *Server) CountConnections() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.mu.conns)
}

func (s *Server) acceptConns() {
	for {
		c, err := s.listener.Accept()
		if err != nil {
			return
		}
		s.mu.Lock()
		s.mu.conns[c] = struct{}{}
		s.mu.Unlock()
		s.running.Go(func() {
			s.serveConn(c)
			_ = c.Close()
			s.mu.Lock()
			delete(s.mu.conns, c)
			s.mu.Unlock()
		})
	}
}

func (s *Server) serveConn(c net.Conn) {
	r := bufio.NewReader(c)
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return
		}
		out, ok := s.runCommand(strings.Fields(line), r)
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

func (s *Server) runCommand(f []string, r io.Reader) (out []byte, ok bool) {
	if len(f) == 0 {
		return []byte("ERROR\r\n"), false
	}
	switch {
	case f[0] == "get":
		return s.getItems(f[1:]), true
	case f[0] == "set" && len(f) == 5:
		return s.setItem(f, r)
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

func (s *Server) getItems(keys []string) []byte {
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

func (s *Server) setItem(f []string, r io.Reader) (out []byte, ok bool) {
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
