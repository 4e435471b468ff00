package test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"scribe/consumer"
	"scribe/internal/format/loss"
	"scribe/internal/format/record"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/test/program"
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

// writeFrames writes frames of a producer to the category log, at the level none.
func writeFrames(t *testing.T, url string, frames, inFrame int) {
	t.Helper()
	transport := rpc.NewTransport(nil)
	defer transport.Close()
	write := rpc.NewWriteClient(transport, url)
	line := []byte(strings.Repeat("x", 300))
	for i := range frames {
		var b record.Builder
		err := b.Reset(nil, record.Envelope{
			Category: "log", BaseTime: time.Now().UnixMicro(), Sequenced: true, Producer: 7, Epoch: 1, FirstSequence: uint64(i * inFrame), //nolint:gosec // not negative
		})
		if err != nil {
			t.Fatal(err)
		}
		for range inFrame {
			if err := b.AppendPayload(line); err != nil {
				t.Fatal(err)
			}
		}
		frame, err := b.Finish()
		if err != nil {
			t.Fatal(err)
		}
		res, err := write.Write(t.Context(), &scribev1.WriteRequest{Frames: frame, Ack: scribev1.AckLevel_ACK_LEVEL_NONE})
		if err != nil || res.GetResults()[0].GetError() != nil {
			t.Fatal(err, res)
		}
	}
}

// outageConfig is an agent that keeps little of an outage.
const outageConfig = `
spool:
  categories:
    - {match: "log", when_full: drop_oldest, max_bytes: 1MiB}
`

// TestLossesOutliveSIGTERM: an agent that is stopped during an outage in which it has dropped messages tells of them when it runs again, with
// its host, its id and the reason, and exactly.
func TestLossesOutliveSIGTERM(t *testing.T) {
	dir := t.TempDir()
	config := filepath.Join(dir, "agent.yaml")
	if err := os.WriteFile(config, []byte(outageConfig), 0o600); err != nil {
		t.Fatal(err)
	}
	address := program.Reserve(t) // nobody listens there
	args := []string{
		"agent", "--config", config, "--id", "agent-7", "--upstream", "http://" + address, "--spool", filepath.Join(dir, "spool"), "--listen", "127.0.0.1:0",
	}
	const frames, inFrame = 300, 100
	agent := serve(t, nil, args...)
	writeFrames(t, agent.URL, frames, inFrame)
	agent.Stop()
	cell := serve(t, nil, "up", "--data", filepath.Join(dir, "data"), "--listen", address)
	serve(t, nil, args...)
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	var arrived, told uint64
	var wrong string
	eventually(t, waitLimit, "everything has arrived, or is told to be lost", func() bool {
		arrived, told, wrong = 0, 0, ""
		r, err := consumer.New(cell.URL, "log", consumer.WithStart(consumer.Earliest()), consumer.WithUntilEnd(), consumer.WithWindow(0))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = r.Close() }()
		seen := map[string]bool{}
		for _, err := range r.Records(t.Context()) {
			gap := new(consumer.GapError)
			switch {
			case errors.As(err, &gap) && gap.Reason == consumer.GapDropped:
				if id := fmt.Sprint(gap.Report.Run, "/", gap.Report.Number); !seen[id] {
					seen[id] = true
					told += gap.Report.Messages
				}
				if gap.Report.Host != host || gap.Report.Agent != "agent-7" || gap.Report.Reason != "full" {
					wrong = gap.Report.String()
				}
			case err != nil:
				return false // the category does not exist yet
			default:
				arrived++
			}
		}
		return arrived+told >= frames*inFrame
	})
	if arrived+told != frames*inFrame || told == 0 || arrived == 0 || wrong != "" {
		t.Errorf("of %d messages %d arrived and %d are told to be lost; %s", frames*inFrame, arrived, told, wrong)
	}
}
