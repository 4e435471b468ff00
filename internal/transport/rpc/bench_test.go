//go:build unix

package rpc_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"syscall"
	"testing"

	"connectrpc.com/connect"

	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/proto/scribe/v1/scribev1connect"
)

// BenchmarkWrite compares a Write with a bare POST of the same bytes, which is what the kernel and net/http take anyhow, and with
// Connect's own client and handler. cpu-ns/byte is the processor time of the whole process, both ends.
//
//	go test ./internal/transport/rpc -run '^$' -bench Write -count 6
func BenchmarkWrite(b *testing.B) {
	f := new(fake)
	mux := http.NewServeMux()
	f.services().Register(mux)
	path, h := scribev1connect.NewWriteServiceHandler(f, connect.WithReadMaxBytes(rpc.MaxMessageBytes))
	mux.Handle("/connect"+path, http.StripPrefix("/connect", h))
	mux.HandleFunc("POST /bare", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = w.Write([]byte("ok"))
	})
	url, t := serveBench(b, mux)
	bare := &http.Client{Transport: &http.Transport{}}
	defer bare.CloseIdleConnections()
	for _, size := range []int{1 << 10, 64 << 10, 1 << 20, 16 << 20} {
		req := &scribev1.WriteRequest{Frames: bytes.Repeat([]byte("0123456789abcdef"), size/16)}
		for name, write := range map[string]func() error{
			"bare": func() error {
				res, err := bare.Post(url+"/bare", "application/octet-stream", bytes.NewReader(req.GetFrames()))
				if err != nil {
					return err
				}
				_, _ = io.Copy(io.Discard, res.Body)
				return res.Body.Close()
			},
			"connect": call2(scribev1connect.NewWriteServiceClient(bare, url+"/connect").Write, req),
			"rpc":     call2(rpc.NewWriteClient(t, url).Write, req),
		} {
			b.Run(fmt.Sprintf("via=%s/size=%d", name, size), func(b *testing.B) { cpu(b, size, write) })
		}
	}
}

// BenchmarkFetch is the same for the way back.
//
//	go test ./internal/transport/rpc -run '^$' -bench Fetch -count 6
func BenchmarkFetch(b *testing.B) {
	for _, size := range []int{1 << 10, 64 << 10, 1 << 20, 16 << 20} {
		data := bytes.Repeat([]byte("0123456789abcdef"), size/16)
		svc := payload{&scribev1.FetchResponse{Payloads: []*scribev1.Payload{{Data: data, Codec: 1, Crc: 1}}}}
		mux := http.NewServeMux()
		(&rpc.Services{ReadProxy: svc}).Register(mux)
		path, h := scribev1connect.NewReadProxyServiceHandler(svc)
		mux.Handle("/connect"+path, http.StripPrefix("/connect", h))
		mux.HandleFunc("GET /bare", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(data) })
		url, t := serveBench(b, mux)
		bare := &http.Client{Transport: &http.Transport{DisableCompression: true}}
		defer bare.CloseIdleConnections() //nolint:revive // few rounds
		req := &scribev1.FetchRequest{Pointers: [][]byte{make([]byte, 60)}}
		for name, fetch := range map[string]func() error{
			"bare": func() error {
				res, err := bare.Get(url + "/bare")
				if err != nil {
					return err
				}
				_, _ = io.Copy(io.Discard, res.Body)
				return res.Body.Close()
			},
			"connect": call2(scribev1connect.NewReadProxyServiceClient(bare, url+"/connect", connect.WithAcceptCompression("gzip", nil, nil)).Fetch, req),
			"rpc":     call2(rpc.NewReadProxyClient(t, url).Fetch, req),
		} {
			b.Run(fmt.Sprintf("via=%s/size=%d", name, size), func(b *testing.B) { cpu(b, size, fetch) })
		}
	}
}

type payload struct{ res *scribev1.FetchResponse }

func (p payload) Fetch(context.Context, *scribev1.FetchRequest) (*scribev1.FetchResponse, error) {
	return p.res, nil
}

func call2[Req, Res any](method func(context.Context, *Req) (*Res, error), req *Req) func() error {
	return func() error {
		_, err := method(context.Background(), req)
		return err
	}
}

func serveBench(b *testing.B, h http.Handler) (url string, t *rpc.Transport) {
	b.Helper()
	l, err := new(net.ListenConfig).Listen(b.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	s := rpc.NewServer(h, nil)
	s.Serve(l)
	t = rpc.NewTransport(nil)
	b.Cleanup(func() {
		t.Close()
		_ = s.Close(context.Background())
	})
	return "http://" + l.Addr().String(), t
}

// cpu runs f b.N times and reports the processor time a byte.
func cpu(b *testing.B, size int, f func() error) {
	b.SetBytes(int64(size))
	b.ReportAllocs()
	before := used()
	for b.Loop() {
		if err := f(); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(used()-before)/float64(b.N)/float64(size), "cpu-ns/byte")
}

func used() int64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return u.Utime.Nano() + u.Stime.Nano()
}
