package rpc

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestTokenFile: a file with a token is read again at most once a second. While there is none in it the former one counts, and the log says so once, also that it is over.
func TestTokenFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	put := func(text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put("one\n")
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		of := &Transport{tokens: new(tokenHolder)}
		if of.RenewsTokens() {
			t.Error("without a token")
		}
		of.SetToken("fixed")
		if of.RenewsTokens() {
			t.Error("with a fixed token")
		}
		if err := of.SetTokenFile(path, slog.New(slog.NewTextHandler(&out, nil))); err != nil {
			t.Fatal(err)
		}
		if !of.RenewsTokens() {
			t.Error("with a file")
		}
		put("two")
		for _, c := range []struct {
			after       time.Duration
			put, want   string
			logs, lines int
		}{{0, "two", "one", 0, 0}, {time.Second, "two", "two", 0, 0}, {time.Second, "", "two", 1, 1}, {time.Second, "\n", "two", 1, 1}, {time.Second, "three", "three", 1, 2}} {
			put(c.put)
			<-time.After(c.after)
			if got := of.tokens.held().of(nil); got != c.want {
				t.Errorf("%q in the file: %q, want %q", c.put, got, c.want)
			}
			if lines, warnings := strings.Count(out.String(), "\n"), strings.Count(out.String(), "level=WARN"); lines != c.lines || warnings != c.logs {
				t.Errorf("%q in the file: %d lines, %d warnings: %s", c.put, lines, warnings, &out)
			}
		}
	})
	if _, err := FileTokens(filepath.Join(t.TempDir(), "none"), slog.New(slog.DiscardHandler)); err == nil {
		t.Error("without a file at first")
	}
}
