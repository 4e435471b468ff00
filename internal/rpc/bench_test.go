package rpc_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"syscall"
	"testing"

	"scribe/internal/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// sink takes writes and gives nothing back.
type sink struct{ rpc.WriteService }

func (sink) Write(context.Context, *scribev1.WriteRequest) (*scribev1.WriteResponse, error) {
	return &scribev1.WriteResponse{Results: []*scribev1.FrameResult{{Shard: 1, Lsn: 2}}}, nil
}

// BenchmarkWrite compares a Write with a bare POST of the same bytes: what the hardware and net/http take anyhow.
//
//	go test ./internal/rpc -run '^$' -bench Write -count 6
func BenchmarkWrite(b *testing.B) {
	mux := http.NewServeMux()
	(&rpc.Services{Write: sink{}}).Register(mux)
	mux.HandleFunc("POST /bare", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = w.Write([]byte("ok"))
	})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	s := rpc.NewServer(mux, slog.New(slog.DiscardHandler))
	s.Serve(l)
	defer func() { _ = s.Close(context.Background()) }()
	t := rpc.NewTransport(nil)
	defer t.Close()
	url := "http://" + l.Addr().String()
	bare := &http.Client{}
	defer bare.CloseIdleConnections()
	for _, size := range []int{1 << 10, 64 << 10, 1 << 20, 16 << 20} {
		frames := bytes.Repeat([]byte("0123456789abcdef"), size/16)
		b.Run(fmt.Sprintf("bare/size=%d", size), func(b *testing.B) {
			cpu(b, size, func() error {
				res, err := bare.Post(url+"/bare", "application/octet-stream", bytes.NewReader(frames))
				if err != nil {
					return err
				}
				_, _ = io.Copy(io.Discard, res.Body)
				return res.Body.Close()
			})
		})
		b.Run(fmt.Sprintf("rpc/size=%d", size), func(b *testing.B) {
			c := rpc.NewWriteClient(t, url)
			cpu(b, size, func() error {
				_, err := c.Write(b.Context(), &scribev1.WriteRequest{Frames: frames})
				return err
			})
		})
	}
}

// cpu runs f b.N times and reports the processor time of the whole process, both ends, a byte.
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
