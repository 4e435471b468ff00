package test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"scribe/internal/testkit/sample"
)

// tail reads a category from its beginning to its present end.
func tail(t *testing.T, c *cell, category string, args ...string) []byte {
	t.Helper()
	return ok(t, nil, append([]string{"tail", category, "--server", c.read, "--from", "earliest", "--until-end", "-o", "raw"}, args...)...)
}

func produce(t *testing.T, c *cell, category string, input []byte, args ...string) {
	t.Helper()
	ok(t, bytes.NewReader(input), append([]string{"produce", category, "--server", c.write, "--ack", "committed"}, args...)...)
}

// sameBytes compares long outputs without printing them whole.
func sameBytes(t *testing.T, what string, got, want []byte) {
	t.Helper()
	if bytes.Equal(got, want) {
		return
	}
	at := 0
	for at < min(len(got), len(want)) && got[at] == want[at] {
		at++
	}
	excerpt := func(b []byte) []byte { return b[max(0, min(at-20, len(b))):min(at+60, len(b))] }
	t.Fatalf("%s: %d bytes, want %d; they differ at %d: %q, want %q", what, len(got), len(want), at, excerpt(got), excerpt(want))
}

// TestRealInput writes real logs and reads them back, byte for byte and in order, before and after a restart.
func TestRealInput(t *testing.T) {
	eachKind(t, func(t *testing.T, c *cell) {
		inputs := map[string][]byte{"access": sample.AccessLog(), "access.json": sample.AccessJSON(), "nginx_status": sample.NginxStatus()}
		for name, input := range inputs {
			produce(t, c, name, input)
			sameBytes(t, name, tail(t, c, name), input)
		}
		c.restart(t, c)
		for name, input := range inputs {
			sameBytes(t, name+" after a restart", tail(t, c, name), input)
		}
		produce(t, c, "access", []byte("one more\n"))
		sameBytes(t, "access, written to after a restart", tail(t, c, "access"), append(slices.Clone(inputs["access"]), "one more\n"...))
	})
}

// TestConcurrentProducers: ten processes write at once; each line arrives once, and those of one process in order.
func TestConcurrentProducers(t *testing.T) {
	eachKind(t, func(t *testing.T, c *cell) {
		ok(t, nil, "category", "create", "crowd", "--server", c.read)
		const producers, lines = 10, 500
		var wg sync.WaitGroup
		for p := range producers {
			wg.Go(func() {
				var b bytes.Buffer
				for i := range lines {
					fmt.Fprintf(&b, "%d %06d\n", p, i)
				}
				produce(t, c, "crowd", b.Bytes(), "--batch-bytes", "4KiB")
			})
		}
		wg.Wait()
		perProducer := make([][]string, producers)
		for line := range strings.Lines(string(tail(t, c, "crowd"))) {
			perProducer[line[0]-'0'] = append(perProducer[line[0]-'0'], line)
		}
		for p, got := range perProducer {
			for i, line := range got {
				if want := fmt.Sprintf("%d %06d\n", p, i); line != want {
					t.Fatalf("producer %d: line %d is %q, want %q", p, i, line, want)
				}
			}
			if len(got) != lines {
				t.Errorf("producer %d: %d lines, want %d", p, len(got), lines)
			}
		}
	})
}

// TestOddLines: what a line may be.
func TestOddLines(t *testing.T) {
	eachKind(t, func(t *testing.T, c *cell) {
		big := bytes.Repeat([]byte("0123456789abcde\n"), 8<<20/16)
		big = bytes.ReplaceAll(big, []byte{'\n'}, []byte{'-'})
		var in bytes.Buffer
		in.WriteString("\n\nfirst\n\n")
		in.Write([]byte{0xff, 0xfe, 0x00, 0x80, '\r', '\n'})
		in.Write(big)
		in.WriteString("\nno newline at the end")
		produce(t, c, "odd", in.Bytes())
		sameBytes(t, "odd lines", tail(t, c, "odd"), append(slices.Clone(in.Bytes()), '\n'))
	})
}

// TestLineOverLimit: the line is named, the others are stored, and the exit code says that it was only a part.
func TestLineOverLimit(t *testing.T) {
	eachKind(t, func(t *testing.T, c *cell) {
		file := filepath.Join(t.TempDir(), "input.txt")
		content := "one\n" + strings.Repeat("x", 17<<20) + "\nthree\n"
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		r := cli(t, nil, "produce", "limits", file, "--server", c.write)
		if r.Code != 6 || !strings.Contains(string(r.Stderr), "input.txt:2: ") || !strings.Contains(string(r.Stderr), "16MiB") {
			t.Fatalf("exit code %d, want 6 and an error that names line 2 and the limit:\n%s", r.Code, r.Stderr)
		}
		sameBytes(t, "the other lines", tail(t, c, "limits"), []byte("one\nthree\n"))
	})
}

// TestCategoryLimit: a category with a smaller limit refuses what the producer's own limit allows.
func TestCategoryLimit(t *testing.T) {
	eachKind(t, func(t *testing.T, c *cell) {
		ok(t, nil, "category", "create", "small", "--max-message", "4KiB", "--server", c.read)
		r := cli(t, strings.NewReader("fits\n"+strings.Repeat("x", 8<<10)+"\n"), "produce", "small", "--server", c.write)
		if r.Code == 0 || !strings.Contains(string(r.Stderr), "4096") {
			t.Fatalf("exit code %d, want a failure that names the limit of 4096 bytes:\n%s", r.Code, r.Stderr)
		}
	})
}

// TestManyShards: a keyless category over several logical shards is read whole, or one shard of it.
func TestManyShards(t *testing.T) {
	eachKind(t, func(t *testing.T, c *cell) {
		ok(t, nil, "category", "create", "wide", "--shards", "4", "--server", c.read)
		for shard := range 4 {
			produce(t, c, "wide", fmt.Appendf(nil, "shard %d\n", shard), "--shard", fmt.Sprint(shard))
		}
		lines := strings.Split(strings.TrimSpace(string(tail(t, c, "wide"))), "\n")
		slices.Sort(lines)
		if want := []string{"shard 0", "shard 1", "shard 2", "shard 3"}; !slices.Equal(lines, want) {
			t.Errorf("all shards hold %q, want %q", lines, want)
		}
		sameBytes(t, "logical shard 2", tail(t, c, "wide", "--shards", "2"), []byte("shard 2\n"))
		r := cli(t, strings.NewReader("x\n"), "produce", "wide", "--shard", "4", "--server", c.write)
		if r.Code != 3 {
			t.Errorf("shard 4 of 4: exit code %d, want 3\n%s", r.Code, r.Stderr)
		}
	})
}
