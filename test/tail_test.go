package test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"scribe/test/program"
)

// TestCheckpointFile: a tail that is run again with its checkpoint goes on with the message after the last one printed.
func TestCheckpointFile(t *testing.T) {
	eachKind(t, func(t *testing.T, c *cell) {
		var input bytes.Buffer
		for i := range 1000 {
			fmt.Fprintf(&input, "line %d\n", i)
		}
		produce(t, c, "log", input.Bytes(), "--batch-bytes", "4KiB")
		file := filepath.Join(t.TempDir(), "checkpoint")
		var got []byte
		for _, n := range []string{"1", "10", "489", "100"} {
			got = append(got, tail(t, c, "log", "--checkpoint", file, "-n", n)...)
		}
		got = append(got, tail(t, c, "log", "--checkpoint", file)...)
		sameBytes(t, "read in five runs", got, input.Bytes())
		if more := tail(t, c, "log", "--checkpoint", file); len(more) > 0 {
			t.Errorf("after the end: %q", more)
		}
		produce(t, c, "log", []byte("later\n"))
		sameBytes(t, "what came later", tail(t, c, "log", "--checkpoint", file), []byte("later\n"))
	})
}

// TestDamagedCheckpointFile: a file that was cut anywhere is an error, never a wrong position.
func TestDamagedCheckpointFile(t *testing.T) {
	up := serve(t, nil, "up", "--data", filepath.Join(t.TempDir(), "data"), "--listen", "127.0.0.1:0")
	defer up.Stop()
	c := &cell{write: up.URL, read: up.URL}
	produce(t, c, "log", []byte("a\nb\n"))
	file := filepath.Join(t.TempDir(), "checkpoint")
	tail(t, c, "log", "--checkpoint", file, "-n", "1")
	whole, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	text := bytes.TrimSpace(whole)
	for n := range text {
		if err := os.WriteFile(file, text[:n], 0o600); err != nil {
			t.Fatal(err)
		}
		r := cli(t, nil, "tail", "log", "--server", up.URL, "--checkpoint", file, "--until-end")
		if r.Code == 0 || len(r.Stdout) > 0 || !strings.Contains(string(r.Stderr), file+" can't be resumed from") || !strings.Contains(string(r.Stderr), "remove it") {
			t.Errorf("cut to %d of %d bytes: exit code %d, printed %q:\n%s", n, len(text), r.Code, r.Stdout, r.Stderr)
		}
	}
}

// TestFollow: a tail that was started first prints messages as they are written, and ends when its reader closes the pipe.
func TestFollow(t *testing.T) {
	eachKind(t, func(t *testing.T, c *cell) {
		ok(t, nil, "category", "create", "live", "--server", c.read)
		p, stdout := launch(t, nil, "tail", "live", "--server", c.read, "--from", "earliest")
		lines := bufio.NewReader(stdout)
		for i := range 5 {
			want := fmt.Sprintf("message %d\n", i)
			produce(t, c, "live", []byte(want))
			got, err := lines.ReadString('\n')
			if err != nil || got != want {
				t.Fatalf("got %q, %v, want %q", got, err, want)
			}
		}
		p.Stop()
	})
}

// TestJSONLines: a message with its key and what surrounds it.
func TestJSONLines(t *testing.T) {
	up := serve(t, nil, "up", "--data", filepath.Join(t.TempDir(), "data"), "--listen", "127.0.0.1:0")
	defer up.Stop()
	c := &cell{write: up.URL, read: up.URL}
	produce(t, c, "users", []byte("{\"user\":\"ann\"}\n"), "--key-field", "user")
	produce(t, c, "users", []byte("\xff\n"))
	got := string(ok(t, nil, "tail", "users", "--server", up.URL, "--from", "earliest", "--until-end", "-o", "jsonl"))
	lines := strings.Split(strings.TrimSpace(got), "\n")
	if len(lines) != 2 || !strings.Contains(lines[0], `"key":"ann","payload":"{\"user\":\"ann\"}"`) || !strings.Contains(lines[1], `"payload_base64":"/w=="`) {
		t.Errorf("printed %s", got)
	}
}

// TestReaderGoesAway: a follower ends with its reader, although no message comes that a write could fail on.
func TestReaderGoesAway(t *testing.T) {
	up := serve(t, nil, "up", "--data", filepath.Join(t.TempDir(), "data"), "--listen", "127.0.0.1:0")
	defer up.Stop()
	produce(t, &cell{write: up.URL, read: up.URL}, "quiet", []byte("a\nb\n"))
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	cmd := program.Command(ctx, program.Binary(), "tail", "quiet", "--server", up.URL, "--from", "earliest")
	cmd.Stdout = w
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = w.Close()
	if line, err := bufio.NewReader(r).ReadString('\n'); err != nil || line != "a\n" {
		t.Errorf("got %q, %v", line, err)
	}
	_ = r.Close()
	if err := cmd.Wait(); err != nil {
		t.Errorf("the command ended with %v", err)
	}
}
