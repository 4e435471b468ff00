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

// Limits of the format. A message that exceeds them is not a report.
const (
	// MaxPayload bounds the JSON in bytes.
	MaxPayload = 1024
	// MaxText bounds texts in bytes.
	MaxText = 64
)

// Values of Report.By.
const (
	ByAgent    = "agent"
	ByProducer = "producer"
)

// ErrInvalid matches a report that exceeds a limit or is empty.
var ErrInvalid = errors.New("loss: invalid report")

// Report describes dropped messages. (By, Run, Number) identifies it, so that a report that was stored twice can be recognized.
type Report struct {
	// Reason is the reason as in the reporter's metrics, for example "full", "expired" or "damaged".
	Reason string `json:"reason"`
	// Messages, Frames and Bytes (of frames) are the numbers of what was dropped. Messages is above 0.
	Messages uint64 `json:"messages"`
	Frames   uint64 `json:"frames"`
	Bytes    uint64 `json:"bytes"`
	// Since and Until are the times of the first and the last drop, Unix microseconds by the reporter's clock.
	Since int64 `json:"since"`
	Until int64 `json:"until"`
	// AllShards says that the messages may be of any logical shard; otherwise they are of the report's own.
	AllShards bool `json:"all_shards,omitempty"`
	// By is the kind of reporter, [ByAgent] or [ByProducer]; Run is a random name of its run, and Number counts its reports.
	By     string `json:"by"`
	Run    string `json:"run"`
	Number uint64 `json:"number"`
	// Host is the name of the reporter's machine, Agent the id of the agent's process; empty if they are unknown.
	Host  string `json:"host,omitempty"`
	Agent string `json:"agent,omitempty"`
}

// String describes the report in words.
func (r *Report) String() string {
	by := r.By
	if r.Agent != "" {
		by += " " + r.Agent
	}
	if r.Host != "" {
		by += " on " + r.Host
	}
	return fmt.Sprintf("(%s: %s, %s to %s, report %s/%d)", by, r.Reason,
		time.UnixMicro(r.Since).UTC().Format(time.RFC3339Nano), time.UnixMicro(r.Until).UTC().Format(time.RFC3339Nano), r.Run, r.Number)
}

// Validate returns the violation that would make Parse refuse r. It matches [ErrInvalid].
func (r *Report) Validate() error {
	switch {
	case r.Messages == 0:
		return fmt.Errorf("%w: of no messages", ErrInvalid)
	case r.Reason == "" || r.By == "" || r.Run == "":
		return fmt.Errorf("%w: reason, by and run are needed", ErrInvalid)
	case len(r.Reason) > MaxText || len(r.By) > MaxText || len(r.Run) > MaxText || len(r.Host) > MaxText || len(r.Agent) > MaxText:
		return fmt.Errorf("%w: a text of more than %d bytes", ErrInvalid, MaxText)
	}
	return nil
}

// AppendFrame appends to dst the frame of a report for a (category, logical shard). Its event time is now, in Unix microseconds.
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

// Parse returns the report in a message, or false if the message is not one. The message must be the only one of its frame. It
// does not allocate for a message without the attribute.
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
		return Report{}, false // more data follows
	}
	return r, true
}

// IsReport reports whether a frame is a report.
func IsReport(frame []byte) bool {
	_, _, is, err := inFrame(frame)
	return is && err == nil
}

// inFrame returns the logical shard of a frame, and its report if it is one.
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
