package rpc_test

import (
	"bytes"
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/proto/scribe/v1/scribev1connect"
)

// plain is served by Connect's generated handlers alone: what this package's clients must be able to call.
type plain struct {
	scribev1connect.UnimplementedWriteServiceHandler
	frames   []byte
	deadline time.Duration
}

func (p *plain) Write(ctx context.Context, req *scribev1.WriteRequest) (*scribev1.WriteResponse, error) {
	p.frames = bytes.Clone(req.GetFrames())
	if d, ok := ctx.Deadline(); ok {
		p.deadline = time.Until(d)
	}
	if req.GetAck() == scribev1.AckLevel_ACK_LEVEL_SPOOLED {
		return nil, rpc.RetryErrorf(scribev1.Reason_REASON_OVERLOADED, 3*time.Second, "full")
	}
	return &scribev1.WriteResponse{Results: []*scribev1.FrameResult{{Shard: 7, Lsn: 9}}}, nil
}

func (p *plain) Fetch(context.Context, *scribev1.FetchRequest) (*scribev1.FetchResponse, error) {
	return &scribev1.FetchResponse{Payloads: []*scribev1.Payload{
		{Codec: 1, Data: []byte("payload"), RawLength: 7, Crc: 1234567},
		{Error: &scribev1.ErrorInfo{Reason: scribev1.Reason_REASON_MISSING, Message: "gone"}},
	}}, nil
}

// TestClientsCallConnect: the clients that speak the protocol by themselves are understood by the library's own server, and
// understand it, errors and deadlines included.
func TestClientsCallConnect(t *testing.T) {
	p := &plain{}
	mux := http.NewServeMux()
	mux.Handle(scribev1connect.NewWriteServiceHandler(p))
	mux.Handle(scribev1connect.NewReadProxyServiceHandler(p))
	server := httptest.NewServer(mux)
	defer server.Close()
	transport := rpc.NewTransport(nil)
	defer transport.Close()

	frames := bytes.Repeat([]byte("frame"), 100_000)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	res, err := rpc.NewWriteClient(transport, server.URL).Write(ctx, &scribev1.WriteRequest{Frames: frames, Ack: scribev1.AckLevel_ACK_LEVEL_COMMITTED})
	if err != nil || len(res.GetResults()) != 1 || res.GetResults()[0].GetShard() != 7 || res.GetResults()[0].GetLsn() != 9 {
		t.Errorf("write: %v, %v", res, err)
	}
	if !bytes.Equal(p.frames, frames) {
		t.Errorf("%d bytes arrived, %d were sent", len(p.frames), len(frames))
	}
	if p.deadline <= 0 || p.deadline > time.Minute {
		t.Errorf("the server was given %v, the caller has a minute", p.deadline)
	}
	_, err = rpc.NewWriteClient(transport, server.URL).Write(ctx, &scribev1.WriteRequest{Frames: frames, Ack: scribev1.AckLevel_ACK_LEVEL_SPOOLED})
	if info := rpc.Info(err); info.GetReason() != scribev1.Reason_REASON_OVERLOADED || info.GetRetryAfter().AsDuration() != 3*time.Second {
		t.Errorf("the refusal arrived as %v", info)
	}
	fetched, err := rpc.NewReadProxyClient(transport, server.URL).Fetch(ctx, &scribev1.FetchRequest{Pointers: [][]byte{{1}, {2}}, Category: "access"})
	if err != nil || len(fetched.GetPayloads()) != 2 || string(fetched.GetPayloads()[0].GetData()) != "payload" ||
		fetched.GetPayloads()[1].GetError().GetReason() != scribev1.Reason_REASON_MISSING {
		t.Errorf("fetch: %v, %v", fetched, err)
	}
}
