package loss

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"scribe/internal/format/record"
)

// Attribute is the name of the attribute that marks a report, Version its value.
const (
	Attribute = "scribe.loss"
	Version   = "1"
)

// Limits of the format. What is over them is no report.
const (
	// MaxPayload bounds the JSON in bytes.
	MaxPayload = 1024
	// MaxText bounds Reason, By and Run in bytes.
	MaxText = 64
)

// Who reports.
const (
	ByAgent    = "agent"
	ByProducer = "producer"
)

// ErrInvalid is a report that is over a limit or says nothing.
var ErrInvalid = errors.New("loss: invalid report")

// Report says what was dropped. (By, Run, Number) names it: one that was stored twice, since an answer was lost, can be recognized.
type Report struct {
	// Reason is why, as in the reporter's metrics: for example "full", "expired" or "damaged".
	Reason string `json:"reason"`
	// Messages, Frames and Bytes (of frames) were dropped. Messages is above 0.
	Messages uint64 `json:"messages"`
	Frames   uint64 `json:"frames"`
	Bytes    uint64 `json:"bytes"`
	// Since and Until are when the first and the last of them were dropped, Unix microseconds by the reporter's clock.
	Since int64 `json:"since"`
	Until int64 `json:"until"`
	// AllShards says that they may be of any logical shard; else they are of the one that the report is in.
	AllShards bool `json:"all_shards,omitempty"`
	// By is what reports, [ByAgent] or [ByProducer]; Run is a random name of its run, and Number counts its reports.
	By     string `json:"by"`
	Run    string `json:"run"`
	Number uint64 `json:"number"`
}

// String says it in words.
func (r *Report) String() string {
	return fmt.Sprintf("(%s: %s, %s to %s, report %s/%d)", r.By, r.Reason,
		time.UnixMicro(r.Since).UTC().Format(time.RFC3339Nano), time.UnixMicro(r.Until).UTC().Format(time.RFC3339Nano), r.Run, r.Number)
}

// Validate reports what keeps r from being read again. It matches [ErrInvalid].
func (r *Report) Validate() error {
	switch {
	case r.Messages == 0:
		return fmt.Errorf("%w: of no messages", ErrInvalid)
	case r.Reason == "" || r.By == "" || r.Run == "":
		return fmt.Errorf("%w: reason, by and run are needed", ErrInvalid)
	case len(r.Reason) > MaxText || len(r.By) > MaxText || len(r.Run) > MaxText:
		return fmt.Errorf("%w: a text of more than %d bytes", ErrInvalid, MaxText)
	}
	return nil
}

// AppendFrame appends the frame of a report of a (category, logical shard) to dst. Its event time is now, in Unix microseconds.
func AppendFrame(dst []byte, category string, shard uint32, now int64, r *Report) ([]byte, error) {
	if err := r.Validate(); err != nil {
		return dst, err
	}
	payload, err := json.Marshal(r)
	if err != nil {
		return dst, fmt.Errorf("loss: encode a report: %w", err)
	}
	if len(payload) > MaxPayload {
		return dst, fmt.Errorf("%w: %d bytes, the limit is %d", ErrInvalid, len(payload), MaxPayload)
	}
	var b record.Builder
	if err := b.Reset(dst, record.Envelope{Category: category, Shard: shard, BaseTime: now}); err != nil {
		return dst, err
	}
	m := record.Message{Payload: payload, Attributes: []record.Attribute{{Name: Attribute, Value: []byte(Version)}}}
	if err := b.Append(&m); err != nil {
		return dst, err
	}
	return b.Finish()
}

// Parse returns the report in a message; false when the message is not one. The message must be the only one of its frame. It allocates
// nothing for a message without the attribute.
func Parse(payload []byte, attributes record.Attributes) (Report, bool) {
	if len(attributes) == 0 {
		return Report{}, false
	}
	if v, ok := attributes.Get(Attribute); !ok || string(v) != Version || len(payload) > MaxPayload {
		return Report{}, false
	}
	var r Report
	d := json.NewDecoder(bytes.NewReader(payload))
	if d.Decode(&r) != nil || r.Validate() != nil {
		return Report{}, false
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return Report{}, false // there is more after it
	}
	return r, true
}

// inFrame returns the logical shard of a frame, and the report that it holds if it is one.
func inFrame(b []byte) (shard uint32, r Report, is bool, err error) {
	h, err := record.ParseHeader(b)
	if err != nil || h.Count != 1 || h.Encoding != record.EncodingMessages || h.Len > 2*MaxPayload || len(b) < h.Len {
		return h.Shard, Report{}, false, err
	}
	var (
		d record.Decoder
		m record.Record
	)
	if _, err := d.Reset(b); err != nil || !d.Next(&m) {
		return h.Shard, Report{}, false, nil //nolint:nilerr // a frame that is no report, whatever else is wrong with it
	}
	r, is = Parse(m.Payload, m.Attributes)
	return h.Shard, r, is, nil
}
