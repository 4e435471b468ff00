package producer_test

import (
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"scribe/internal/format/loss"
	"scribe/internal/format/record"
	"scribe/producer"
	scribev1 "scribe/proto/scribe/v1"
)

// reported collects the reports of requests that hold nothing else.
func reported(t *testing.T, req *scribev1.WriteRequest) (reports []loss.Report) {
	for f, err := range record.Split(req.GetFrames()) {
		if err != nil {
			t.Fatal(err)
		}
		var d record.Decoder
		var r record.Record
		if _, err := d.Reset(f.Bytes); err != nil || !d.Next(&r) {
			t.Fatal(err)
		}
		if rep, ok := loss.Parse(r.Payload, r.Attributes); ok && f.Count == 1 {
			reports = append(reports, rep)
		}
	}
	return reports
}

// What Log could not take is told to the readers, exactly, once the server takes it, also when that is at the end.
func TestLossesAreReported(t *testing.T) {
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("a.b.c"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, atEnd := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			var (
				back    atomic.Bool
				told    = map[uint64]loss.Report{}
				answers int
			)
			s := &server{fault: func(_ int, req *scribev1.WriteRequest) *fault {
				if !back.Load() {
					return &fault{before: refusal(scribev1.Reason_REASON_NO_BACKEND, 0)}
				}
				for _, r := range reported(t, req) {
					if answers++; answers == 1 && !atEnd {
						return &fault{before: refusal(scribev1.Reason_REASON_OVERLOADED, 0)}
					}
					if answers == 2 && !atEnd {
						return &fault{before: refusal(scribev1.Reason_REASON_UNAUTHENTICATED, 0)} // until the token is renewed
					}
					if _, again := told[r.Number]; again {
						t.Errorf("report %d came twice", r.Number)
					}
					told[r.Number] = r
				}
				return nil
			}}
			opts := []producer.Option{producer.WithService(s), producer.WithMaxBufferedBytes(256 << 10), producer.WithLossReports(time.Second), producer.WithTokenFile(token)}
			host, err := os.Hostname()
			if err != nil {
				t.Fatal(err)
			}
			if atEnd { // and else the machine's
				host = "host-7"
				opts = append(opts, producer.WithHost(host))
			}
			p, err := producer.New("", opts...)
			if err != nil {
				t.Fatal(err)
			}
			for range 1000 {
				p.Log("web.access", []byte(strings.Repeat("x", 1000)))
			}
			<-time.After(time.Minute)
			back.Store(true)
			if !atEnd {
				<-time.After(time.Minute)
			}
			if err := p.Close(t.Context()); err != nil {
				t.Error(err)
			}
			dropped := uint64(0)
			for _, n := range p.Stats().Dropped {
				dropped += n
			}
			sum := uint64(0)
			for _, r := range told {
				sum += r.Messages
				if r.By != loss.ByProducer || r.Reason != string(producer.DropBufferFull) || r.AllShards || r.Bytes != 1000*r.Messages || r.Host != host || r.Agent != "" {
					t.Errorf("report %+v", r)
				}
			}
			if dropped == 0 || sum != dropped {
				t.Errorf("%d of %d dropped messages were reported", sum, dropped)
			}
		})
	}
}
