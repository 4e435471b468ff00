package rpc_test

import (
	"bytes"
	"context"
	"sync"
	"testing"

	"google.golang.org/protobuf/proto"

	scribev1 "scribe/proto/scribe/v1"
)

// kind is a way in which calls travel.
type kind struct {
	name    string
	streams bool
	call    func(context.Context, *endpoint) error
}

// kinds: requests whose bytes go around Connect, those that Connect carries, and both forms of streams.
var kinds = []kind{
	{"bulk", false, func(ctx context.Context, e *endpoint) error {
		_, err := e.write().Write(ctx, &scribev1.WriteRequest{Frames: make([]byte, 100_000)})
		return err
	}},
	{"fetch", false, func(ctx context.Context, e *endpoint) error {
		_, err := e.readProxy().Fetch(ctx, &scribev1.FetchRequest{Pointers: [][]byte{{1}}})
		return err
	}},
	{"unary", false, func(ctx context.Context, e *endpoint) error {
		_, err := e.control().GetStatus(ctx, &scribev1.GetStatusRequest{})
		return err
	}},
	{"server stream", true, func(ctx context.Context, e *endpoint) error {
		return e.metalog().Subscribe(ctx, &scribev1.SubscribeRequest{}, func(*scribev1.SubscribeResponse) error { return nil })
	}},
	{"both ways", true, func(ctx context.Context, e *endpoint) error {
		return e.readStream().Stream(ctx, noSteps, func(*scribev1.StreamResponse) error { return nil })
	}},
}

// waiting is a server all of whose calls do the same.
func waiting(do func(context.Context) error) *fake {
	return &fake{
		unary:  func(ctx context.Context, _ proto.Message) (proto.Message, error) { return nil, do(ctx) },
		stream: func(ctx context.Context, _ proto.Message, _ func(proto.Message) error) error { return do(ctx) },
		bidi: func(ctx context.Context, _ func(context.Context) (*scribev1.StreamRequest, error), _ func(*scribev1.StreamResponse) error) error {
			return do(ctx)
		},
	}
}

func everywhereKind(t *testing.T, test func(t *testing.T, network string, kind kind)) {
	t.Helper()
	for _, network := range networks {
		for _, kind := range kinds {
			t.Run(network+"/"+kind.name, func(t *testing.T) { test(t, network, kind) })
		}
	}
}

// lockedBuffer is a log that several goroutines write.
type lockedBuffer struct {
	mu struct {
		sync.Mutex
		b bytes.Buffer
	}
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.b.Write(p)
}

func (l *lockedBuffer) take() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.mu.b.Reset()
	return l.mu.b.String()
}
