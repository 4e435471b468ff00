package rpc_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"scribe/internal/transport/retry"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/proto/scribe/v1/scribev1connect"
)

// budget admits up to a number of bytes.
type budget struct {
	limit, used, peak atomic.Int64
}

func (b *budget) admit(n int64) (func(), error) {
	used := b.used.Add(n)
	if used > b.limit.Load() {
		b.used.Add(-n)
		return nil, rpc.RetryErrorf(scribev1.Reason_REASON_OVERLOADED, 1200*time.Millisecond, "%d bytes more are too many", n)
	}
	b.peak.Store(max(b.peak.Load(), used))
	return func() { b.used.Add(-n) }, nil
}

// admitting is a server that admits through b, and whose writes return how much was admitted while they ran.
func admitting(b *budget) *rpc.Services {
	s := (&fake{unary: func(_ context.Context, req proto.Message) (proto.Message, error) {
		switch req.(type) {
		case *scribev1.WriteRequest:
			return &scribev1.WriteResponse{Results: []*scribev1.FrameResult{{Lsn: uint64(b.used.Load())}}}, nil
		case *scribev1.PublishRequest:
			return &scribev1.PublishResponse{Lsn: uint64(b.used.Load())}, nil
		}
		return nil, nil
	}}).services()
	s.Admit, s.AdmitBatch, s.AdmitPush = b.admit, b.admit, b.admit
	return s
}

func refusedForLoad(t *testing.T, err error) {
	t.Helper()
	info := rpc.Info(err)
	if connect.CodeOf(err) != connect.CodeResourceExhausted || info.GetReason() != scribev1.Reason_REASON_OVERLOADED ||
		info.GetRetryAfter().AsDuration() != 1200*time.Millisecond {
		t.Errorf("error is %v with %v", err, info)
	}
}

// A refusal reaches the client whatever the size of what it sends, and what was admitted is given back.
func TestAdmission(t *testing.T) {
	for _, network := range networks {
		t.Run(network, func(t *testing.T) {
			var b budget
			e := start(t, network, admitting(&b))
			frames := make([]byte, 32<<20)
			for range 3 { // each on a connection of its own, or on one that is still good
				_, err := e.write().Write(t.Context(), &scribev1.WriteRequest{Frames: frames})
				refusedForLoad(t, err)
				_, err = e.batch().Submit(t.Context(), &scribev1.SubmitRequest{Frames: frames})
				refusedForLoad(t, err)
				_, err = rpc.NewPushClient(e.transport, e.url).Push(t.Context(), &scribev1.PushRequest{Blocks: []*scribev1.PushedBlock{{Data: frames}}})
				refusedForLoad(t, err)
				_, err = e.write().Publish(t.Context(), &scribev1.PublishRequest{Category: string(make([]byte, 1<<20))})
				refusedForLoad(t, err)
				_, err = e.write().Write(t.Context(), &scribev1.WriteRequest{Frames: frames[:10]})
				refusedForLoad(t, err)
			}
			b.limit.Store(40 << 20)
			res, err := e.write().Write(t.Context(), &scribev1.WriteRequest{Frames: frames})
			if lsn := res.GetResults()[0].GetLsn(); err != nil || lsn < 32<<20 || lsn > 32<<20+64 {
				t.Errorf("%d bytes were admitted, %v", lsn, err)
			}
			if b.used.Load() != 0 {
				t.Errorf("%d bytes are still admitted", b.used.Load())
			}
		})
	}
}

// Over HTTP/2 a refusal ends one call, not the connection that others share.
func TestAdmissionHTTP2(t *testing.T) {
	var b budget
	s := admitting(&b)
	running := make(chan struct{})
	s.Control = waiting(func(ctx context.Context) error {
		close(running)
		<-ctx.Done()
		return ctx.Err()
	})
	e := start(t, "tcp", s)
	var dials atomic.Int32
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	h2c := &http.Transport{Protocols: protocols, DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		dials.Add(1)
		return new(net.Dialer).DialContext(ctx, network, addr)
	}}
	defer h2c.CloseIdleConnections()
	hc := &http.Client{Transport: h2c}
	watch, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- rpc.NewControlClient(rpc.OverClient(hc), e.url).WatchMembers(watch, &scribev1.WatchMembersRequest{}, func(*scribev1.WatchMembersResponse) error { return nil })
	}()
	<-running
	frames := make([]byte, 32<<20)
	for name, client := range map[string]interface {
		Write(context.Context, *scribev1.WriteRequest) (*scribev1.WriteResponse, error)
	}{
		"connect": scribev1connect.NewWriteServiceClient(hc, "http://"+e.url),
		"grpc":    scribev1connect.NewWriteServiceClient(hc, "http://"+e.url, connect.WithGRPC()),
		"own":     rpc.NewWriteClient(rpc.OverClient(hc), e.url),
	} {
		for range 3 {
			_, err := client.Write(t.Context(), &scribev1.WriteRequest{Frames: frames})
			if name == "grpc" { // announces no length: admitted as it comes
				if rpc.ReasonOf(err) != scribev1.Reason_REASON_OVERLOADED {
					t.Errorf("%s: %v", name, err)
				}
				continue
			}
			refusedForLoad(t, err)
		}
	}
	stop()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the stream beside ended with %v", err)
	}
	if dials.Load() != 1 {
		t.Errorf("%d connections were made", dials.Load())
	}
}

// A client that sends all of a body before it looks at the answer sees the refusal as well.
func TestAdmissionSeenByPlainClient(t *testing.T) {
	for _, network := range []string{"tcp", "unix"} {
		for _, kind := range []string{"announced", "chunked", "chunked and asked for"} {
			t.Run(network+"/"+kind, func(t *testing.T) {
				var b budget
				e := start(t, network, admitting(&b))
				addr := strings.TrimPrefix(e.url, "unix:")
				c, err := new(net.Dialer).DialContext(t.Context(), network, addr)
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				const size = 32 << 20
				head := "POST /scribe.v1.WriteService/Write HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
				body, answers := make([]byte, size), bufio.NewReader(c)
				switch kind {
				case "announced":
					_, err = fmt.Fprintf(c, "%sContent-Length: %d\r\n\r\n%s", head, size, body)
				case "chunked":
					_, err = fmt.Fprintf(c, "%sTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", head, size, body)
				default:
					if _, err = fmt.Fprintf(c, "%sTransfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n", head); err != nil {
						break
					}
					if res, err := http.ReadResponse(answers, nil); err != nil || res.StatusCode != http.StatusContinue {
						t.Fatalf("%v, %v", res, err)
					}
					_, err = fmt.Fprintf(c, "%x\r\n%s\r\n0\r\n\r\n", size/4, body[:size/4]) // refused long before the last of it
				}
				if err != nil {
					t.Fatalf("send: %v", err)
				}
				res, err := http.ReadResponse(answers, nil)
				if err != nil {
					t.Fatalf("read the answer: %v", err)
				}
				defer res.Body.Close()
				wantError(t, res, http.StatusTooManyRequests, "resource_exhausted", "too many", "REASON_OVERLOADED")
				if after := res.Header.Get("Retry-After"); after != "2" {
					t.Errorf("Retry-After is %q", after)
				}
			})
		}
	}
}

// wantError checks an error as people and programs without the protocol's details see it.
func wantError(t *testing.T, res *http.Response, status int, code, text, reason string) {
	t.Helper()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	var wire struct {
		Code, Message string
		Details       []struct {
			Type  string
			Debug struct{ Reason string }
		}
	}
	if err := json.Unmarshal(body, &wire); err != nil || len(wire.Details) != 1 {
		t.Fatalf("%d: %s (%v)", res.StatusCode, body, err)
	}
	if res.StatusCode != status || wire.Code != code || !strings.Contains(wire.Message, text) || wire.Details[0].Debug.Reason != reason ||
		wire.Details[0].Type != "scribe.v1.ErrorInfo" {
		t.Errorf("%d: %s", res.StatusCode, body)
	}
}

// A client that asks first is answered first, and need not send.
func TestAdmissionBeforeBody(t *testing.T) {
	var b budget
	e := start(t, "tcp", admitting(&b))
	c, err := new(net.Dialer).DialContext(t.Context(), "tcp", e.url)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, "POST /scribe.v1.WriteService/Write HTTP/1.1\r\nHost: x\r\nContent-Type: application/proto\r\nExpect: 100-continue\r\nContent-Length: 33554432\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	wantError(t, res, http.StatusTooManyRequests, "resource_exhausted", "too many", "REASON_OVERLOADED")
}

// reader hides what kind of reader it is, so that net/http announces no length.
type reader struct{ io.Reader }

// A body that announces no length is admitted as it comes, in steps.
func TestAdmissionOfUnknownLength(t *testing.T) {
	var b budget
	b.limit.Store(5 << 20)
	e := start(t, "tcp", admitting(&b))
	post := func(size int) (*http.Response, *scribev1.WriteResponse) {
		body, err := proto.Marshal(&scribev1.WriteRequest{Frames: make([]byte, size)})
		if err != nil {
			t.Fatal(err)
		}
		res := e.post(t, "WriteService/Write", "application/proto", reader{bytes.NewReader(body)})
		answer, _ := io.ReadAll(res.Body)
		res.Body = io.NopCloser(bytes.NewReader(answer))
		w := new(scribev1.WriteResponse)
		_ = proto.Unmarshal(answer, w)
		return res, w
	}
	res, w := post(4<<20 - 100)
	if res.StatusCode != http.StatusOK || w.GetResults()[0].GetLsn() != 4<<20 {
		t.Errorf("%s, %d bytes were admitted", res.Status, w.GetResults()[0].GetLsn())
	}
	res, _ = post(6 << 20)
	wantError(t, res, http.StatusTooManyRequests, "resource_exhausted", "too many", "REASON_OVERLOADED")
	if b.used.Load() != 0 || b.peak.Load() != 5<<20 {
		t.Errorf("%d bytes are still admitted, %d were", b.used.Load(), b.peak.Load())
	}
}

// post sends what curl would.
func (e *endpoint) post(t *testing.T, procedure, contentType string, body io.Reader) *http.Response {
	t.Helper()
	tr := &http.Transport{}
	if e.dial != nil {
		tr.DialContext = e.dial
	}
	t.Cleanup(tr.CloseIdleConnections)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+e.url+"/scribe.v1."+procedure, body)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", contentType)
	res, err := (&http.Client{Transport: tr}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = res.Body.Close() })
	return res
}

// What is over the limit is refused as too large, which is no reason to try again, wherever it is noticed.
func TestTooLarge(t *testing.T) {
	everywhere(t, new(fake), func(t *testing.T, e *endpoint) {
		large := make([]byte, rpc.MaxMessageBytes)
		check := func(what string, err error) {
			t.Helper()
			if rpc.ReasonOf(err) != scribev1.Reason_REASON_TOO_LARGE || connect.CodeOf(err) != connect.CodeInvalidArgument || retry.Retryable(err) {
				t.Errorf("%s: %v", what, err)
			}
		}
		_, err := e.write().Write(t.Context(), &scribev1.WriteRequest{Frames: large})
		check("write", err)
		_, err = e.batch().Submit(t.Context(), &scribev1.SubmitRequest{Frames: large})
		check("submit", err)
		_, err = e.readProxy().Fetch(t.Context(), &scribev1.FetchRequest{Pointers: [][]byte{large}})
		check("fetch", err)
		_, err = e.write().Publish(t.Context(), &scribev1.PublishRequest{Messages: []*scribev1.PublishMessage{{Key: large}}})
		check("publish", err)
		_, err = e.control().CreateCategory(t.Context(), &scribev1.CreateCategoryRequest{Category: &scribev1.Category{Schema: string(large[:9<<20])}})
		check("create", err)
		if e.dial != nil {
			return
		}
		for _, contentType := range []string{"application/json", "application/proto"} {
			if strings.HasPrefix(e.url, "unix:") {
				break
			}
			for name, body := range map[string]io.Reader{"announced": bytes.NewReader(append(large, 0)), "not announced": reader{bytes.NewReader(append(large, 0))}} {
				t.Run(contentType+" "+name, func(t *testing.T) {
					wantError(t, e.post(t, "WriteService/Write", contentType, body), http.StatusBadRequest, "invalid_argument", "the limit is 71303168", "REASON_TOO_LARGE")
				})
			}
		}
	})
}

// An answer over the limit is an error at the client.
func TestAnswerTooLarge(t *testing.T) {
	large := make([]byte, rpc.MaxMessageBytes)
	f := &fake{unary: func(_ context.Context, req proto.Message) (proto.Message, error) {
		if _, ok := req.(*scribev1.FetchRequest); ok {
			return &scribev1.FetchResponse{Payloads: []*scribev1.Payload{{Data: large}}}, nil
		}
		return &scribev1.GetStatusResponse{Version: string(large)}, nil
	}}
	e := start(t, "tcp", f.services())
	for _, kind := range kinds[1:3] {
		err := kind.call(t.Context(), e)
		if rpc.ReasonOf(err) != scribev1.Reason_REASON_TOO_LARGE || retry.Retryable(err) {
			t.Errorf("%s: %v", kind.name, err)
		}
	}
}

// A body that stops arriving does not hold its memory forever, but one that has arrived may be worked on for long.
func TestSlowBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b budget
		b.limit.Store(100 << 20)
		s := admitting(&b)
		slow := waiting(func(ctx context.Context) error {
			select {
			case <-time.After(time.Hour):
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
		s.Batch = slow
		e := start(t, "memory", s)
		if _, err := e.batch().Submit(t.Context(), &scribev1.SubmitRequest{Frames: make([]byte, 1<<20)}); err != nil {
			t.Errorf("a call of an hour: %v", err)
		}
		for _, contentType := range []string{"application/proto", "application/json"} {
			c, err := e.dial(t.Context(), "tcp", "x")
			if err != nil {
				t.Fatal(err)
			}
			go func() {
				_, _ = fmt.Fprintf(c, "POST /scribe.v1.WriteService/Write HTTP/1.1\r\nHost: x\r\nContent-Type: %s\r\nContent-Length: 10485760\r\n\r\n%s", contentType, make([]byte, 5<<20))
			}()
			began := time.Now()
			res, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err != nil {
				t.Fatal(err)
			}
			wantError(t, res, http.StatusBadRequest, "invalid_argument", "5242880 bytes of the request's body arrived in 40s", "REASON_INVALID")
			if took := time.Since(began); took != 40*time.Second {
				t.Errorf("the answer took %s", took)
			}
			_ = c.Close()
			synctest.Wait()
			if b.used.Load() != 0 {
				t.Errorf("%d bytes are still admitted", b.used.Load())
			}
		}
	})
}

// A client that stops reading does not hold an answer's memory forever.
func TestSlowReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{unary: func(context.Context, proto.Message) (proto.Message, error) {
			return &scribev1.FetchResponse{Payloads: []*scribev1.Payload{{Data: make([]byte, 1<<20)}}}, nil
		}}
		e := start(t, "memory", f.services())
		c, err := e.dial(t.Context(), "tcp", "x")
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if _, err := io.WriteString(c, "POST /scribe.v1.ReadProxyService/Fetch HTTP/1.1\r\nHost: x\r\nContent-Type: application/proto\r\nContent-Length: 3\r\n\r\n\x0a\x01x"); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(c, make([]byte, 100)); err != nil {
			t.Fatal(err)
		}
		<-time.After(10 * time.Minute)
		if rest, _ := io.Copy(io.Discard, c); rest > 64<<10 {
			t.Errorf("%d bytes came after %s", rest, time.Since(began))
		}
	})
}

// What a handler asks for to be done once its answer has left is done then, whoever carried the answer and however it left.
func TestWhenAnswered(t *testing.T) {
	if rpc.WhenAnswered(t.Context(), func() { t.Error("called") }) {
		t.Error("a call in this process has an answer to wait for")
	}
	for name, begin := range map[string]string{
		"bulk": "Content-Type: application/proto\r\nContent-Length: 3\r\n\r\n\x0a\x01x",
		"json": "Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}",
	} {
		for _, reads := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/reads=%v", name, reads), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					var gone atomic.Int64
					f := &fake{unary: func(ctx context.Context, _ proto.Message) (proto.Message, error) {
						if !rpc.WhenAnswered(ctx, func() { gone.Add(1) }) {
							t.Error("the context does not tell")
						}
						return &scribev1.FetchResponse{Payloads: []*scribev1.Payload{{Data: make([]byte, 1<<20)}}}, nil
					}}
					e := start(t, "memory", f.services())
					c, err := e.dial(t.Context(), "tcp", "x")
					if err != nil {
						t.Fatal(err)
					}
					if _, err := io.WriteString(c, "POST /scribe.v1.ReadProxyService/Fetch HTTP/1.1\r\nHost: x\r\n"+begin); err != nil {
						t.Fatal(err)
					}
					if _, err := io.ReadFull(c, make([]byte, 100)); err != nil {
						t.Fatal(err)
					}
					synctest.Wait()
					if gone.Load() != 0 {
						t.Error("it was called while the answer is being sent")
					}
					if reads {
						_ = c.SetReadDeadline(time.Now().Add(time.Second))
						_, _ = io.Copy(io.Discard, c)
					} else {
						<-time.After(10 * time.Minute)
					}
					synctest.Wait()
					if gone.Load() != 1 {
						t.Errorf("it was called %d times", gone.Load())
					}
				})
			})
		}
	}
}

// Compressed requests would be admitted by a length that says nothing about the memory they take.
func TestCompressedRequest(t *testing.T) {
	e := start(t, "tcp", new(fake).services())
	c := scribev1connect.NewWriteServiceClient(http.DefaultClient, "http://"+e.url, connect.WithSendGzip())
	defer http.DefaultClient.CloseIdleConnections()
	_, err := c.Write(t.Context(), &scribev1.WriteRequest{Frames: make([]byte, 1000)})
	if connect.CodeOf(err) != connect.CodeUnimplemented || !strings.Contains(err.Error(), "gzip") {
		t.Errorf("error is %v", err)
	}
}
