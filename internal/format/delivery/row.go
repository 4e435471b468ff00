package delivery

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"time"

	"scribe/internal/format/record"
)

// Category is where the rows are.
const Category = record.DeliveryCategory

// Schema describes rows to SQL. _time is the beginning of the minute.
const Schema = `
format: json
fields:
  - {name: id, type: string, doc: "of the row; a row that was stored twice has it twice"}
  - {name: hop, type: dictionary, doc: "who counts: library, agent, cell (the agent in a process of the cell) or reader"}
  - {name: host, type: dictionary}
  - {name: agent, type: dictionary, doc: "id of the agent's process"}
  - {name: category, type: dictionary}
  - {name: producer, type: string, doc: "id of the producer library's run, base 16"}
  - {name: reader, type: dictionary, doc: "consumer group, or name of a reader"}
  - {name: reason, type: dictionary, doc: "of dropped"}
  - {name: produced, type: int64, doc: "messages that the hop has taken"}
  - {name: passed, type: int64, doc: "acknowledged by the next hop, and not known to be stored"}
  - {name: stored, type: int64, doc: "acknowledged as committed"}
  - {name: sampled, type: int64, doc: "left out by the category's quota"}
  - {name: dropped, type: int64}
  - {name: delivered, type: int64, doc: "given to the reader's program"}
  - {name: held, type: int64, doc: "all that the agent has of the category, as of then; the newest row of an agent counts"}
`

// Retention is how long rows are kept unless the category says otherwise: as long as other messages, so that they share blobs.
const Retention = 72 * time.Hour

// Limits of the format. What exceeds them is not a row.
const (
	// MaxPayload bounds the JSON of a row in bytes.
	MaxPayload = 4096
	// MaxText bounds texts but the category's name, in bytes.
	MaxText = 64
)

// Values of Row.Hop.
const (
	Library = "library"
	Agent   = "agent"
	// Cell is the agent in a process of the cell, to which other agents forward.
	Cell   = "cell"
	Reader = "reader"
)

// ErrInvalid matches what is not a valid row.
var ErrInvalid = errors.New("delivery: invalid row")

// Counts are numbers of messages. Those of a row are what was added since the hop's last row of the same kind; produced may be below 0, when
// messages that a hop had taken were given back to who sent them.
type Counts struct {
	Produced  int64 `json:"produced,omitempty"`
	Passed    int64 `json:"passed,omitempty"`
	Stored    int64 `json:"stored,omitempty"`
	Sampled   int64 `json:"sampled,omitempty"`
	Dropped   int64 `json:"dropped,omitempty"`
	Delivered int64 `json:"delivered,omitempty"`
}

// Plus returns the sum.
func (c Counts) Plus(o Counts) Counts {
	return Counts{
		c.Produced + o.Produced, c.Passed + o.Passed, c.Stored + o.Stored, c.Sampled + o.Sampled, c.Dropped + o.Dropped, c.Delivered + o.Delivered,
	}
}

// Row is a message of the category. Its event time is the beginning of the minute that it is about.
type Row struct {
	// ID is the name of the reporter's run and the number of the row in it.
	ID  string `json:"id"`
	Hop string `json:"hop"`
	// Host is the name of the machine, Agent the id of the agent's process; empty if unknown.
	Host     string `json:"host,omitempty"`
	Agent    string `json:"agent,omitempty"`
	Category string `json:"category"`
	// Producer is the id in the frames, in base 16; empty for frames without one, and where it is not known.
	Producer string `json:"producer,omitempty"`
	// Reader is the consumer group, or the name of the reader.
	Reader string `json:"reader,omitempty"`
	// Reason is why messages were dropped.
	Reason string `json:"reason,omitempty"`
	Counts
	// Held is how many messages of the category the agent has; nil in rows that do not say.
	Held *int64 `json:"held,omitempty"`
}

// maxCount bounds a count of one row, so that sums of rows do not wrap.
const maxCount = math.MaxInt64 >> 20

// Validate returns the violation that would make [ParseRow] refuse r. It matches [ErrInvalid].
func (r *Row) Validate() error {
	if err := record.ValidateCategory(r.Category); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	switch r.Hop {
	case Library, Agent, Cell, Reader:
	default:
		return fmt.Errorf("%w: the hop %q is not library, agent, cell or reader", ErrInvalid, shortText(r.Hop))
	}
	if r.ID == "" {
		return fmt.Errorf("%w: no id", ErrInvalid)
	}
	for _, text := range []string{r.ID, r.Host, r.Agent, r.Reader, r.Reason} {
		if len(text) > MaxText {
			return fmt.Errorf("%w: a text of more than %d bytes", ErrInvalid, MaxText)
		}
	}
	if _, err := r.ProducerID(); err != nil {
		return err
	}
	for _, n := range []int64{r.Produced, r.Passed, r.Stored, r.Sampled, r.Dropped, r.Delivered} {
		if n > maxCount || n < -maxCount {
			return fmt.Errorf("%w: the count %d is too large", ErrInvalid, n)
		}
	}
	if r.Held != nil && (*r.Held < 0 || *r.Held > maxCount) {
		return fmt.Errorf("%w: %d messages can't be held", ErrInvalid, *r.Held)
	}
	return nil
}

func shortText(s string) string {
	if len(s) > MaxText {
		return s[:MaxText] + "..."
	}
	return s
}

// ProducerID returns the id of the producer, 0 if there is none.
func (r *Row) ProducerID() (uint64, error) {
	if r.Producer == "" {
		return 0, nil
	}
	id, err := strconv.ParseUint(r.Producer, 16, 64)
	if err != nil || id == 0 || r.Producer != producerText(id) {
		return 0, fmt.Errorf("%w: %q is not the id of a producer", ErrInvalid, shortText(r.Producer))
	}
	return id, nil
}

// producerText writes the id of a producer; "" for none.
func producerText(id uint64) string {
	if id == 0 {
		return ""
	}
	return fmt.Sprintf("%016x", id)
}

// ParseRow returns the row in the payload of a message.
func ParseRow(payload []byte) (Row, error) {
	if len(payload) > MaxPayload {
		return Row{}, fmt.Errorf("%w: %d bytes, the limit is %d", ErrInvalid, len(payload), MaxPayload)
	}
	var r Row
	d := json.NewDecoder(bytes.NewReader(payload))
	if err := d.Decode(&r); err != nil {
		return Row{}, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return Row{}, fmt.Errorf("%w: more follows the object", ErrInvalid)
	}
	return r, r.Validate()
}

// microsPerMinute is a minute in the unit of frames' times.
const microsPerMinute = int64(time.Minute / time.Microsecond)

// MinuteOf returns the minute of a time in Unix microseconds: that of a frame is that of its base time.
func MinuteOf(micros int64) int64 {
	minute := micros / microsPerMinute
	if micros%microsPerMinute < 0 {
		minute--
	}
	return minute
}

// timeOf returns the beginning of a minute.
func timeOf(minute int64) time.Time { return time.Unix(minute*60, 0).UTC() }

// appendFrame appends the frame of rows of one category, each with its minute.
func appendFrame(dst []byte, now time.Time, rows []*timedRow) ([]byte, error) {
	var b record.Builder
	if err := b.Reset(dst, record.Envelope{Category: Category, BaseTime: now.UnixMicro()}); err != nil {
		return dst, err
	}
	for _, r := range rows {
		payload, err := json.Marshal(&r.Row)
		if err != nil {
			return dst, fmt.Errorf("delivery: encode a row: %w", err)
		}
		if err := b.Append(&record.Message{Payload: payload, Time: timeOf(r.minute)}); err != nil {
			return dst, err
		}
	}
	return b.Finish()
}

// timedRow is a row with the minute that it is about.
type timedRow struct {
	Row
	minute int64
}

// RowsOf calls fn for each row of a frame, with the minute that it is about, until fn fails. What is not a row is an error.
func RowsOf(frame []byte, fn func(r *Row, minute int64) error) error {
	var (
		d record.Decoder
		m record.Record
	)
	h, err := d.Reset(frame)
	if err != nil {
		return err
	}
	if h.Encoding != record.EncodingMessages {
		return fmt.Errorf("%w: a frame of columns", ErrInvalid)
	}
	for d.Next(&m) {
		r, err := ParseRow(m.Payload)
		if err == nil {
			err = fn(&r, MinuteOf(m.Time))
		}
		if err != nil {
			return err
		}
	}
	return d.Err()
}
