package test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"scribe/consumer"
	"scribe/internal/format/loss"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// TestLossIsTold: what an agent reports as dropped reaches a consumer as a gap, through every hop, between the messages around it.
func TestLossIsTold(t *testing.T) {
	eachKind(t, func(t *testing.T, c *cell) {
		produce(t, c, "log", []byte("before\n"))
		want := loss.Report{Reason: "full", Messages: 12, Frames: 3, Bytes: 3456, Since: 1, Until: 2, By: loss.ByAgent, Run: "f00d", Number: 1}
		frame, err := loss.AppendFrame(nil, "log", 0, 3, &want)
		if err != nil {
			t.Fatal(err)
		}
		transport := rpc.NewTransport(nil)
		defer transport.Close()
		res, err := rpc.NewWriteClient(transport, c.write).Write(t.Context(), &scribev1.WriteRequest{Frames: frame, Ack: scribev1.AckLevel_ACK_LEVEL_COMMITTED})
		if err != nil || res.GetResults()[0].GetError() != nil {
			t.Fatal(err, res)
		}
		produce(t, c, "log", []byte("after\n"))
		r, err := consumer.New(c.read, "log", consumer.WithStart(consumer.Earliest()), consumer.WithUntilEnd(), consumer.WithWindow(0))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = r.Close() }()
		var got []string
		for rec, err := range r.Records(t.Context()) {
			gap := new(consumer.GapError)
			switch {
			case errors.As(err, &gap):
				if gap.Reason != consumer.GapDropped || gap.Messages != 12 || *gap.Report != want {
					t.Errorf("the gap is %+v", gap)
				}
				got = append(got, "gap")
			case err != nil:
				t.Fatal(err)
			default:
				got = append(got, string(rec.Payload))
			}
		}
		slices.Sort(got)
		if strings.Join(got, " ") != "after before gap" {
			t.Errorf("read %q", got)
		}
	})
}
