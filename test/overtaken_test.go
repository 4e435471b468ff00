package test

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"scribe/consumer"
)

// TestRetentionOvertakesAReader: a consumer has pointers, and is so slow that retention removes the log and the blobs before it fetches them. It is
// told of each, with its counts, and reads what came after.
func TestRetentionOvertakesAReader(t *testing.T) {
	t.Parallel()
	data := filepath.Join(t.TempDir(), "data")
	up := serve(t, hasty, "up", "--data", data, "--listen", "127.0.0.1:0")
	defer up.Stop()
	c := &cell{write: up.URL, read: up.URL}
	ok(t, nil, "category", "create", "brief", "--retention", "1m", "--server", up.URL)
	const old = 4
	for i := range old {
		produce(t, c, "brief", fmt.Appendf(nil, "old %d %s\n", i, bytes.Repeat([]byte("x"), 100_000)))
	}
	// What is ahead of the loop has no room for a second one.
	r, err := consumer.New(up.URL, "brief", consumer.WithStart(consumer.Earliest()), consumer.WithPrefetchBytes(64<<10), consumer.WithHeartbeat(100*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	var got []string
	for rec, err := range r.Records(t.Context()) {
		gap := new(consumer.GapError)
		switch {
		case errors.As(err, &gap):
			if gap.Reason != consumer.GapTrimmed || !gap.Counted || gap.Messages != 1 || gap.Bytes < 100_000 || gap.Pointers() != 1 {
				t.Errorf("the gap is %+v", gap)
			}
			got = append(got, "gap")
		case err != nil:
			t.Fatal(err)
		default:
			got = append(got, string(bytes.Fields(rec.Payload)[0]))
		}
		switch len(got) {
		case 1:
			if b := r.Backlog(); !b.Known || b.Pointers < old-1 {
				t.Errorf("the backlog is %+v", b)
			}
			eventually(t, 3*time.Minute, "what expired is removed", func() bool { return len(blobFiles(t, data)) == 0 })
			produce(t, c, "brief", []byte("new\n"))
		case old + 1:
			if text := fmt.Sprint(got); text != "[old gap gap gap new]" {
				t.Errorf("read %s", text)
			}
			return
		}
	}
}
