// Package inputstest provides an agent for tests of inputs.
package inputstest

import (
	"context"
	"testing"
	"time"

	"scribe/internal/format/record"
	"scribe/internal/transport/rpc"
	"scribe/producer"
	scribev1 "scribe/proto/scribe/v1"
)

// Deliver receives the messages of a frame. An error fails the whole request, which is not sent again.
type Deliver func(ctx context.Context, category string, messages []producer.Message) error

// NewProducer returns a producer that writes to deliver and ends with the test.
func NewProducer(tb testing.TB, deliver Deliver, options ...producer.Option) *producer.Producer {
	tb.Helper()
	p, err := producer.New("", append([]producer.Option{
		producer.WithService(deliver), producer.WithAck(producer.AckSpooled), producer.WithRetries(0), producer.WithLinger(0),
	}, options...)...)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = p.Close(context.WithoutCancel(tb.Context())) }) // its remaining messages do not matter
	return p
}

// Write implements producer.Service.
func (deliver Deliver) Write(ctx context.Context, req *scribev1.WriteRequest) (*scribev1.WriteResponse, error) {
	resp := &scribev1.WriteResponse{}
	for data := req.GetFrames(); len(data) > 0; {
		var d record.Decoder
		h, err := d.Reset(data)
		if err != nil {
			return nil, rpc.Errorf(scribev1.Reason_REASON_CORRUPT, "%w", err)
		}
		var messages []producer.Message
		for r := (record.Record{}); d.Next(&r); {
			m := producer.Message{Payload: r.Payload, Key: r.Key, Time: time.UnixMicro(r.Time)}
			for name, value := range r.Attributes.All() {
				m.Attributes = append(m.Attributes, producer.Attribute{Name: string(name), Value: value})
			}
			messages = append(messages, m)
		}
		if err := deliver(ctx, h.CategoryName(), messages); err != nil {
			return nil, err
		}
		resp.Results = append(resp.Results, &scribev1.FrameResult{})
		data = data[h.Len:]
	}
	return resp, nil
}
