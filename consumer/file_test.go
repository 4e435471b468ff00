package consumer_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"scribe/consumer"
	"scribe/internal/format/checkpoint"
)

// TestCheckpointFileCutOrChanged: a file that was cut at any byte, or in which any bit was changed, is an error. There is no other place.
func TestCheckpointFileCutOrChanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCell()
		for i := range 12 {
			c.add(shardID(uint16(i%3), uint16(i%2+1)), fmt.Sprint(i, "a"), fmt.Sprint(i, "b"))
		}
		r := open(t, c, consumer.WithUntilEnd())
		if _, err := read(t.Context(), r, 9); err != nil {
			t.Fatal(err)
		}
		text := r.Checkpoint()
		rest, err := read(t.Context(), r, 0)
		if err != nil || len(rest) != 15 {
			t.Fatal(len(rest), err)
		}
		file := filepath.Join(t.TempDir(), "checkpoint")
		if _, found, err := consumer.LoadCheckpoint(file); found || err != nil {
			t.Fatalf("no file: %v, %v", found, err)
		}
		if err := consumer.SaveCheckpoint(file, text); err != nil {
			t.Fatal(err)
		}
		whole, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		load := func(content []byte) (consumer.Start, error) {
			t.Helper()
			if err := os.WriteFile(file, content, 0o600); err != nil {
				t.Fatal(err)
			}
			start, found, err := consumer.LoadCheckpoint(file)
			if found != (err == nil) {
				t.Errorf("found is %v with %v", found, err)
			}
			return start, err
		}
		same := func(start consumer.Start) {
			t.Helper()
			got, err := read(t.Context(), open(t, c, consumer.WithUntilEnd(), consumer.WithStart(start)), 0)
			want(t, got, err, rest...)
		}
		for _, good := range []string{text, text + "\n", text + "\r\n"} {
			start, err := load([]byte(good))
			if err != nil {
				t.Fatal(err)
			}
			same(start)
		}
		refused := func(what string, content []byte) {
			t.Helper()
			if _, err := load(content); !errors.Is(err, consumer.ErrCheckpoint) || !strings.Contains(err.Error(), file) {
				t.Errorf("%s: %v", what, err)
			}
		}
		for n := range len(text) {
			refused(fmt.Sprintf("cut to %d bytes", n), whole[:n])
			refused(fmt.Sprintf("without its first %d bytes", n+1), whole[n+1:])
		}
		for bit := range 8 * len(text) {
			changed := append([]byte(nil), whole...)
			changed[bit/8] ^= 1 << (bit % 8)
			refused(fmt.Sprintf("with bit %d changed", bit), changed)
		}
		refused("twice", []byte(text+"\n"+text+"\n"))
		refused("much", []byte(strings.Repeat("A", checkpoint.MaxText+10)))

		// What can't be read is not written over what can.
		if _, err := load(whole); err != nil {
			t.Fatal(err)
		}
		if err := consumer.SaveCheckpoint(file, text[:20]); !errors.Is(err, consumer.ErrCheckpoint) {
			t.Errorf("saved a part of a checkpoint: %v", err)
		}
		start, _, err := consumer.LoadCheckpoint(file)
		if err != nil {
			t.Fatal(err)
		}
		same(start)
		if err := consumer.SaveCheckpoint(filepath.Join(file, "x"), text); err == nil {
			t.Error("saved into a file that is no folder")
		}
		if _, _, err := consumer.LoadCheckpoint(t.TempDir()); err == nil {
			t.Error("a folder is no checkpoint")
		}
	})
}
