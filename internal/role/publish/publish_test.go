package publish

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"scribe/internal/format/record"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

func text(s string) *scribev1.PublishMessage {
	return &scribev1.PublishMessage{Content: &scribev1.PublishMessage_Text{Text: s}}
}

func TestFrameHoldsWhatWasPublished(t *testing.T) {
	now := time.UnixMicro(1_700_000_000_000_000)
	payload := &scribev1.PublishMessage{
		Content: &scribev1.PublishMessage_Payload{Payload: []byte{0, 1}}, Key: []byte{}, Time: proto.Int64(-5),
		Attributes: map[string][]byte{"b": []byte("2"), "a": []byte("1")},
	}
	frame, err := Frame(&scribev1.PublishRequest{
		Category: "c", Shard: 3, Atomic: true, Messages: []*scribev1.PublishMessage{text("héllo"), payload, {}},
	}, 0, now)
	if err != nil {
		t.Fatal(err)
	}
	var d record.Decoder
	h, err := d.Reset(frame)
	if err != nil || h.Len != len(frame) || string(h.Category) != "c" || h.Shard != 3 || !h.Atomic() || h.Sequenced() || h.Count != 3 {
		t.Fatalf("header %+v, %v", h, err)
	}
	var r record.Record
	if !d.Next(&r) || string(r.Payload) != "héllo" || r.HasKey || r.HasTime || r.Time != now.UnixMicro() {
		t.Fatalf("text message %+v", r)
	}
	if !d.Next(&r) || string(r.Payload) != "\x00\x01" || !r.HasKey || len(r.Key) != 0 || r.Time != -5 || r.Attributes.Len() != 2 {
		t.Fatalf("payload message %+v", r)
	}
	if v, ok := r.Attributes.Get("b"); !ok || string(v) != "2" {
		t.Fatalf("attribute b = %q", v)
	}
	if !d.Next(&r) || len(r.Payload) != 0 || d.Next(&r) || d.Err() != nil {
		t.Fatalf("empty message %+v, %v", r, d.Err())
	}
}

func TestFrameRefuses(t *testing.T) {
	many := make([]*scribev1.PublishMessage, MaxMessages+1)
	for i := range many {
		many[i] = text("")
	}
	huge := strings.Repeat("x", MaxBytes/2)
	for _, tc := range []struct {
		name   string
		req    *scribev1.PublishRequest
		limit  int
		reason scribev1.Reason
	}{
		{"no message", &scribev1.PublishRequest{Category: "c"}, 0, scribev1.Reason_REASON_INVALID},
		{"too many", &scribev1.PublishRequest{Category: "c", Messages: many}, 0, scribev1.Reason_REASON_INVALID},
		{"name", &scribev1.PublishRequest{Category: "../c", Messages: many[:1]}, 0, scribev1.Reason_REASON_INVALID},
		{"shard", &scribev1.PublishRequest{Category: "c", Shard: 1 << 16, Messages: many[:1]}, 0, scribev1.Reason_REASON_UNKNOWN_SHARD},
		{"message size", &scribev1.PublishRequest{Category: "c", Messages: []*scribev1.PublishMessage{text("12345")}}, 4, scribev1.Reason_REASON_TOO_LARGE},
		{"request size", &scribev1.PublishRequest{Category: "c", Messages: []*scribev1.PublishMessage{text(huge), text(huge)}}, 32 << 20, scribev1.Reason_REASON_TOO_LARGE},
		{
			"attribute", &scribev1.PublishRequest{Category: "c", Messages: []*scribev1.PublishMessage{{Attributes: map[string][]byte{"": nil}}}},
			0, scribev1.Reason_REASON_INVALID,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := Frame(tc.req, tc.limit, time.UnixMicro(0))
			if rpc.ReasonOf(err) != tc.reason {
				t.Fatalf("got %v, want %v", err, tc.reason)
			}
		})
	}
}
