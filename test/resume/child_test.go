package resume

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"scribe/consumer"
	"scribe/internal/format/record"
)

// What a child is told by its environment.
const (
	childServer   = "SCRIBE_RESUME_SERVER"
	childCategory = "SCRIBE_RESUME_CATEGORY"
	childJournal  = "SCRIBE_RESUME_JOURNAL"
	childUntilEnd = "SCRIBE_RESUME_UNTIL_END"
)

func TestMain(m *testing.M) {
	if server := os.Getenv(childServer); server != "" {
		if err := child(server); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// child is one life of the program under test: it goes on at the last checkpoint of its journal, and writes what it reads there, together
// with the checkpoint behind it, until it is killed.
func child(server string) error {
	j, err := openJournal(os.Getenv(childJournal))
	if err != nil {
		return err
	}
	defer func() { _ = j.file.Close() }()
	start := consumer.Earliest()
	if j.checkpoint != "" {
		if start, err = consumer.Checkpoint(j.checkpoint); err != nil {
			return err
		}
	}
	opts := []consumer.Option{consumer.WithStart(start), consumer.WithHeartbeat(50 * time.Millisecond), consumer.WithPrefetchBytes(1 << 20)}
	if os.Getenv(childUntilEnd) != "" {
		opts = append(opts, consumer.WithUntilEnd())
	}
	c, err := consumer.New(server, os.Getenv(childCategory), opts...)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	// Some lives commit when there is nothing more for the moment, which is mostly between payloads; others, and all that have much before
	// them, after so many messages: anywhere.
	eager := rand.IntN(2) == 0
	size := func() int { return 1 + rand.IntN(1<<rand.IntN(8)) }
	pending, most := 0, size()
	commit := func() error {
		if err := j.commit(c.Checkpoint()); err != nil {
			return err
		}
		pending, most = 0, size()
		_, err := os.Stdout.WriteString(".") // for whoever times the kill
		return err
	}
	for rec, err := range c.Records(context.Background()) {
		if err != nil {
			return err
		}
		j.add(rec.Payload)
		if pending++; pending >= most || eager && c.Buffered() == 0 {
			if err := commit(); err != nil {
				return err
			}
		}
	}
	if pending > 0 {
		return commit()
	}
	return nil
}

// journal is a file of transactions: messages, and the checkpoint behind the last of them, written as one and summed. What a death has cut
// off at its end counts for nothing.
type journal struct {
	file       *os.File
	messages   []string
	checkpoint string
	body       []byte
}

// openJournal reads a journal and cuts off what was not committed.
func openJournal(name string) (*journal, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	b, err := io.ReadAll(f)
	if err != nil {
		return nil, err
	}
	j := &journal{file: f}
	whole := 0
	for rest := b; len(rest) >= 8; {
		n := int(binary.LittleEndian.Uint32(rest))
		if len(rest) < 8+n || record.CRC(rest[8:8+n]) != binary.LittleEndian.Uint32(rest[4:]) {
			break
		}
		lines := bytes.Split(rest[8:8+n], []byte("\n"))
		j.checkpoint = string(lines[0])
		for _, l := range lines[1:] {
			j.messages = append(j.messages, string(l))
		}
		whole += 8 + n
		rest = rest[8+n:]
	}
	if err := f.Truncate(int64(whole)); err != nil {
		return nil, err
	}
	_, err = f.Seek(int64(whole), io.SeekStart)
	return j, err
}

func (j *journal) add(message []byte) {
	j.body = append(append(j.body, '\n'), message...)
}

// commit appends a transaction.
func (j *journal) commit(checkpoint string) error {
	if checkpoint == "" {
		return errors.New("a message was delivered, and there is no checkpoint")
	}
	body := append([]byte(checkpoint), j.body...)
	b := binary.LittleEndian.AppendUint32(nil, uint32(len(body)))
	b = binary.LittleEndian.AppendUint32(b, record.CRC(body))
	_, err := j.file.Write(append(b, body...))
	j.body = j.body[:0]
	return err
}
