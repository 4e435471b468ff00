package app

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"scribe/consumer"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// countMessages reads a category from its beginning to its end.
func countMessages(t *testing.T, a *App, category string) (n int) {
	t.Helper()
	c, err := consumer.New(a.URL(), category, consumer.WithStart(consumer.Earliest()), consumer.WithUntilEnd())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	for _, err := range c.Records(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		n++
	}
	return n
}

// A process whose control store is gone, or is from before its categories, does not start: it would give the logs of one category to
// another. What docs/operations.md says brings the categories back, and leaves the logs as they are.
func TestLostControlStore(t *testing.T) {
	c := cellConfig(t)
	stopCell(t, startCell(t, c))
	control, before, lost := filepath.Join(c.Data, "control"), t.TempDir(), filepath.Join(t.TempDir(), "control")
	if err := os.CopyFS(before, os.DirFS(control)); err != nil {
		t.Fatal(err)
	}
	a := startCell(t, c)
	fill(t, a)
	want := countMessages(t, a, "plain")
	stopCell(t, a)
	if err := os.Rename(control, lost); err != nil {
		t.Fatal(err)
	}
	refuses := func(what string) {
		t.Helper()
		a, err := Start(t.Context(), c, Options{Logger: slog.New(slog.DiscardHandler)})
		if err == nil {
			stopCell(t, a)
			t.Fatalf("the cell starts with %s", what)
		}
		for _, part := range []string{control, "lost or older", "scribe recover"} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("with %s: %v: want %q in it", what, err, part)
			}
		}
	}
	refuses("no control store")
	refuses("the control store that such a start has made")
	if err := errors.Join(os.RemoveAll(control), os.CopyFS(control, os.DirFS(before))); err != nil {
		t.Fatal(err)
	}
	refuses("an old control store")

	to := filepath.Join(t.TempDir(), "new")
	o := RecoverOptions{To: to, Catalog: filepath.Join(c.Data, "catalog"), Logger: slog.New(slog.DiscardHandler)}
	if _, err := Recover(context.WithoutCancel(t.Context()), c, o); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.RemoveAll(control), os.Rename(filepath.Join(to, "control"), control)); err != nil {
		t.Fatal(err)
	}
	a = startCell(t, c)
	defer stopCell(t, a)
	if got := countMessages(t, a, "plain"); got != want || want == 0 {
		t.Errorf("%d messages after the recovery, %d before", got, want)
	}
	client := rpc.NewControlClient(rpc.Default(), a.URL())
	if _, err := client.CreateCategory(t.Context(), &scribev1.CreateCategoryRequest{Category: &scribev1.Category{Name: "another"}}); err != nil {
		t.Fatal(err)
	}
	if n := countMessages(t, a, "another"); n != 0 {
		t.Errorf("a new category has %d messages of others", n)
	}
}
