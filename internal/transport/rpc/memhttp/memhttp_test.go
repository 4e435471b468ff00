package memhttp_test

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"

	"go.uber.org/goleak"

	"scribe/internal/transport/rpc/memhttp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConnect(t *testing.T) {
	l := memhttp.Listen()
	defer l.Close()
	accepted := make(chan net.Conn, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			t.Error(err)
		}
		accepted <- c
	}()
	client, err := l.Dial(t.Context(), "tcp", "anything:1")
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	server := <-accepted
	go func() {
		_, _ = io.WriteString(client, "hello")
		_ = client.Close()
	}()
	if got, err := io.ReadAll(server); string(got) != "hello" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	if l.Addr().Network() != "memory" || l.Addr().String() != "memory" {
		t.Errorf("address is %v", l.Addr())
	}
}

func TestClosed(t *testing.T) {
	l := memhttp.Listen()
	accepted := make(chan error, 1)
	go func() {
		_, err := l.Accept()
		accepted <- err
	}()
	for range 2 {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := <-accepted; !errors.Is(err, net.ErrClosed) {
		t.Errorf("accept: %v", err)
	}
	var op *net.OpError
	if _, err := l.Dial(t.Context(), "tcp", "x:1"); !errors.Is(err, net.ErrClosed) || !errors.As(err, &op) || op.Op != "dial" {
		t.Errorf("dial: %v", err)
	}
}

func TestNobodyAccepts(t *testing.T) {
	l := memhttp.Listen()
	defer l.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := l.Dial(ctx, "tcp", "x:1"); !errors.Is(err, context.Canceled) {
		t.Errorf("dial: %v", err)
	}
}
