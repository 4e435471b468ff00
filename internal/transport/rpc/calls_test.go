package rpc_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"scribe/internal/transport/retry"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// Every method of every service is there on both sides, and reaches the server with its own request.
func TestEveryProcedure(t *testing.T) {
	seen := make(chan string, 1)
	note := func(req proto.Message) { seen <- string(req.ProtoReflect().Descriptor().Name()) }
	f := &fake{
		unary: func(_ context.Context, req proto.Message) (proto.Message, error) {
			note(req)
			return nil, nil
		},
		stream: func(_ context.Context, req proto.Message, send func(proto.Message) error) error {
			note(req)
			return send(nil)
		},
		bidi: func(context.Context, func(context.Context) (*scribev1.StreamRequest, error), func(*scribev1.StreamResponse) error) error {
			seen <- "StreamRequest"
			return nil
		},
	}
	everywhere(t, f, func(t *testing.T, e *endpoint) {
		services := map[reflect.Type]any{
			reflect.TypeFor[rpc.WriteService]():      e.write(),
			reflect.TypeFor[rpc.BatchService]():      e.batch(),
			reflect.TypeFor[rpc.MetalogService]():    e.metalog(),
			reflect.TypeFor[rpc.ReadStreamService](): e.readStream(),
			reflect.TypeFor[rpc.ReadProxyService]():  e.readProxy(),
			reflect.TypeFor[rpc.ControlService]():    e.control(),
			reflect.TypeFor[rpc.ViewService]():       rpc.NewViewClient(e.transport, e.url),
		}
		for service, client := range services {
			for m := range service.Methods() {
				messages, err := call(t.Context(), client, m)
				if err != nil {
					t.Errorf("%s: %v", m.Name, err)
				}
				if got := <-seen; got != m.Name+"Request" {
					t.Errorf("%s reached the server as %s", m.Name, got)
				}
				if streams := m.Type.NumIn() == 3 && m.Name != "Stream"; streams != (messages == 1) {
					t.Errorf("%s brought %d messages of a stream", m.Name, messages)
				}
			}
		}
	})
}

// call calls a method with an empty request, and counts the messages that a stream brings.
func call(ctx context.Context, client any, m reflect.Method) (messages int, err error) {
	method := reflect.ValueOf(client).MethodByName(m.Name)
	args := []reflect.Value{reflect.ValueOf(ctx)}
	for i := 1; i < m.Type.NumIn(); i++ {
		in := m.Type.In(i)
		switch {
		case in.Kind() == reflect.Pointer:
			args = append(args, reflect.New(in.Elem()))
		case in.NumIn() == 1 && in.NumOut() == 1: // send
			args = append(args, reflect.MakeFunc(in, func([]reflect.Value) []reflect.Value {
				messages++
				return []reflect.Value{reflect.Zero(reflect.TypeFor[error]())}
			}))
		default: // recv
			args = append(args, reflect.ValueOf(noSteps))
		}
	}
	out := method.Call(args)
	err, _ = reflect.TypeAssert[error](out[len(out)-1])
	return messages, err
}

// What is written arrives, and what is fetched, byte for byte, at sizes on both sides of every buffer.
func TestBytesArrive(t *testing.T) {
	f := &fake{unary: func(_ context.Context, req proto.Message) (proto.Message, error) {
		switch req := req.(type) {
		case *scribev1.WriteRequest:
			return &scribev1.WriteResponse{Results: []*scribev1.FrameResult{{Shard: uint64(len(req.GetFrames())), Lsn: sum(req.GetFrames())}}}, nil
		case *scribev1.SubmitRequest:
			return &scribev1.SubmitResponse{Load: uint32(req.GetAck()), Results: []*scribev1.FrameResult{{Lsn: sum(req.GetFrames())}}}, nil
		case *scribev1.FetchRequest:
			res := new(scribev1.FetchResponse)
			for _, p := range req.GetPointers()[1:] { // an answer may refer to the request
				res.Payloads = append(res.Payloads, &scribev1.Payload{Data: p, RawLength: uint64(len(p)), Codec: 1, Crc: uint32(sum(p)), View: &scribev1.PayloadView{Rows: uint64(len(p)), Exact: true}})
			}
			res.Payloads = append(res.Payloads, &scribev1.Payload{Error: &scribev1.ErrorInfo{Reason: scribev1.Reason_REASON_MISSING, Message: "gone"}})
			return res, nil
		}
		return nil, errors.New("unexpected")
	}}
	everywhere(t, f, func(t *testing.T, e *endpoint) {
		w, b, p := e.write(), e.batch(), e.readProxy()
		for _, n := range []int{0, 1, 100, 4 << 10, 16 << 10, 64<<10 + 1, 1 << 20, 3<<20 + 7} {
			data := make([]byte, n)
			for i := range data {
				data[i] = byte(i * 7 >> 3)
			}
			res, err := w.Write(t.Context(), &scribev1.WriteRequest{Frames: data})
			if err != nil || res.GetResults()[0].GetShard() != uint64(n) || res.GetResults()[0].GetLsn() != sum(data) {
				t.Fatalf("write %d bytes: %v, %v", n, res, err)
			}
			sub, err := b.Submit(t.Context(), &scribev1.SubmitRequest{Frames: data, Ack: scribev1.AckLevel_ACK_LEVEL_COMMITTED})
			if err != nil || sub.GetLoad() != 3 || sub.GetResults()[0].GetLsn() != sum(data) {
				t.Fatalf("submit %d bytes: %v, %v", n, sub, err)
			}
			got, err := p.Fetch(t.Context(), &scribev1.FetchRequest{Pointers: [][]byte{nil, data, []byte("x"), data}})
			if err != nil || len(got.GetPayloads()) != 4 {
				t.Fatalf("fetch %d bytes: %d payloads, %v", n, len(got.GetPayloads()), err)
			}
			for i, want := range [][]byte{data, []byte("x"), data} {
				pay := got.GetPayloads()[i]
				if !bytes.Equal(pay.GetData(), want) || pay.GetCrc() != uint32(sum(want)) || pay.GetRawLength() != uint64(len(want)) || pay.GetError() != nil ||
					pay.GetView().GetRows() != uint64(len(want)) || !pay.GetView().GetExact() {
					t.Fatalf("fetch %d bytes: payload %d is wrong", n, i)
				}
			}
			if info := got.GetPayloads()[3].GetError(); info.GetReason() != scribev1.Reason_REASON_MISSING || info.GetMessage() != "gone" {
				t.Fatalf("the error of a payload is %v", info)
			}
		}
	})
}

func sum(b []byte) uint64 {
	h := uint64(14695981039346656037)
	for _, c := range b {
		h = (h ^ uint64(c)) * 1099511628211
	}
	return h
}

// The caller's deadline is the server's, and what a call that missed it returns is what a direct call would.
func TestDeadline(t *testing.T) {
	for _, kind := range kinds {
		t.Run(kind.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				had := make(chan time.Duration, 1)
				wait := func(ctx context.Context) error {
					deadline, _ := ctx.Deadline()
					had <- time.Until(deadline)
					<-ctx.Done()
					return ctx.Err()
				}
				e := start(t, "memory", waiting(wait).services())
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
				defer cancel()
				err := kind.call(ctx, e)
				if d := <-had; d != 20*time.Second {
					t.Errorf("the server had %s", d)
				}
				if !errors.Is(err, context.DeadlineExceeded) || connect.CodeOf(err) != connect.CodeDeadlineExceeded ||
					rpc.ReasonOf(err) != scribev1.Reason_REASON_UNKNOWN_OUTCOME {
					t.Errorf("error is %v (%s)", err, rpc.ReasonOf(err))
				}
			})
		})
	}
}

// A server's own deadline matches as well.
func TestDeadlineOfServer(t *testing.T) {
	f := waiting(func(context.Context) error { return fmt.Errorf("ask the next role: %w", context.DeadlineExceeded) })
	e := start(t, "memory", f.services())
	for _, kind := range kinds {
		err := kind.call(t.Context(), e)
		if !errors.Is(err, context.DeadlineExceeded) || !connect.IsWireError(err) || !strings.Contains(err.Error(), "ask the next role") {
			t.Errorf("%s: error is %v", kind.name, err)
		}
	}
}

// A caller that gives up ends the server's context, and gets its own context's error.
func TestCancel(t *testing.T) {
	everywhereKind(t, func(t *testing.T, network string, kind kind) {
		began, ended := make(chan struct{}), make(chan error, 1)
		f := waiting(func(ctx context.Context) error {
			close(began)
			<-ctx.Done()
			ended <- ctx.Err()
			return ctx.Err()
		})
		e := start(t, network, f.services())
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			<-began
			cancel()
		}()
		err := kind.call(ctx, e)
		if !errors.Is(err, context.Canceled) || connect.CodeOf(err) != connect.CodeCanceled ||
			rpc.ReasonOf(err) != scribev1.Reason_REASON_UNKNOWN_OUTCOME {
			t.Errorf("error is %v (%s)", err, rpc.ReasonOf(err))
		}
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("the server's context: %v", err)
		}
	})
}

// The memory of a request is the caller's again when a call has returned, however it ended; the race detector watches.
func TestRequestIsCallersAgain(t *testing.T) {
	for _, network := range networks {
		t.Run(network, func(t *testing.T) {
			returned := make(chan struct{})
			e := startHandler(t, network, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				_, _ = r.Body.Read(make([]byte, 1<<10)) // the rest stays on its way
				<-returned                              // a server that does not read does not learn that its client has gone
			}))
			defer close(returned)
			frames := make([]byte, 32<<20)
			ctx, cancel := context.WithCancel(t.Context())
			go cancel()
			if _, err := e.write().Write(ctx, &scribev1.WriteRequest{Frames: frames}); !errors.Is(err, context.Canceled) {
				t.Errorf("error is %v", err)
			}
			clear(frames)
		})
	}
}

// A bug in a handler ends its call, is logged with its stack, and nothing else.
func TestPanic(t *testing.T) {
	for _, network := range networks {
		t.Run(network, func(t *testing.T) {
			var log lockedBuffer
			f := waiting(func(context.Context) error { panic("boom") })
			s := f.services()
			s.Logger = slog.New(slog.NewTextHandler(&log, nil))
			e := start(t, network, s)
			for _, kind := range kinds {
				err := kind.call(t.Context(), e)
				if connect.CodeOf(err) != connect.CodeInternal || !strings.Contains(err.Error(), "bug") || strings.Contains(err.Error(), "boom") {
					t.Errorf("%s: error is %v", kind.name, err)
				}
				if retry.Retryable(err) {
					t.Errorf("%s: repeating what makes a server panic is of no use", kind.name)
				}
				if text := log.take(); !strings.Contains(text, "boom") || !strings.Contains(text, "calls_test.go") {
					t.Errorf("%s: log is %q", kind.name, text)
				}
			}
		})
	}
}

// What breaks on the way has a reason that says whether the request can have been carried out.
func TestBrokenConnection(t *testing.T) {
	for _, network := range networks {
		t.Run(network, func(t *testing.T) {
			e := startHandler(t, network, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }))
			for _, kind := range kinds {
				want := scribev1.Reason_REASON_UNKNOWN_OUTCOME
				if kind.streams {
					want = scribev1.Reason_REASON_NO_BACKEND // nothing to carry out
				}
				err := kind.call(t.Context(), e)
				if rpc.ReasonOf(err) != want || connect.CodeOf(err) != connect.CodeUnavailable || !retry.Retryable(err) {
					t.Errorf("%s: error is %v (%s)", kind.name, err, rpc.ReasonOf(err))
				}
				// The reason is of use at the next hop only when it travels.
				if again := rpc.FromInfo(rpc.Info(err)); rpc.ReasonOf(again) != want {
					t.Errorf("%s: passed on it is %v", kind.name, again)
				}
			}
		})
	}
}

func TestNobodyListens(t *testing.T) {
	const nobody = "127.0.0.1:1" // a port that is given to nobody who asks for any, as one that was closed just now may be
	for _, url := range []string{nobody, "unix:" + t.TempDir() + "/none"} {
		for name, transport := range map[string]*rpc.Transport{"own": rpc.NewTransport(nil), "over": rpc.OverClient(&http.Client{})} {
			if name == "over" && strings.HasPrefix(url, "unix:") {
				continue
			}
			e := &endpoint{transport: transport, url: url}
			for _, kind := range kinds {
				err := kind.call(t.Context(), e)
				if rpc.ReasonOf(err) != scribev1.Reason_REASON_NO_BACKEND || connect.CodeOf(err) != connect.CodeUnavailable {
					t.Errorf("%s over %s to %s: error is %v (%s)", kind.name, name, url, err, rpc.ReasonOf(err))
				}
			}
			transport.Close()
		}
	}
}

// Another program at the address is an error that says so, and no reason to try again.
func TestNotThisService(t *testing.T) {
	e := startHandler(t, "memory", http.NotFoundHandler())
	html := startHandler(t, "memory", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		_, _ = w.Write([]byte("<p>Welcome"))
	}))
	for _, kind := range kinds {
		if err := kind.call(t.Context(), e); connect.CodeOf(err) != connect.CodeUnimplemented || retry.Retryable(err) {
			t.Errorf("%s: error is %v", kind.name, err)
		}
		if err := kind.call(t.Context(), html); err == nil {
			t.Errorf("%s: took a web page for an answer", kind.name)
		}
	}
}

func TestBadAddress(t *testing.T) {
	transport := rpc.NewTransport(nil)
	for _, url := range []string{"", "http://", "http://[::1", "/only/a/path"} {
		_, err := rpc.NewWriteClient(transport, url).Write(t.Context(), &scribev1.WriteRequest{})
		if rpc.ReasonOf(err) != scribev1.Reason_REASON_INVALID || !strings.Contains(err.Error(), "address") {
			t.Errorf("%q: error is %v", url, err)
		}
	}
}
