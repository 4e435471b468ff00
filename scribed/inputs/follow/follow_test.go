package follow

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"scribe/internal/base/units"
	"scribe/internal/transport/rpc"
	"scribe/producer"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/scribed/inputs"
	"scribe/scribed/inputs/inputstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// agent is one that keeps what it is given.
type agent struct {
	got map[string][]string // by category
	err error
	see func()
}

func (a *agent) Deliver(_ context.Context, category string, messages []producer.Message) error {
	if a.see != nil {
		a.see()
	}
	if a.err != nil {
		return a.err
	}
	for _, m := range messages {
		a.got[category] = append(a.got[category], string(m.Payload))
	}
	return nil
}

func (a *agent) all() (out []string) {
	for _, lines := range a.got {
		out = append(out, lines...)
	}
	return out
}

// world is a folder of logs, and a follower of it whose clock the test moves.
type world struct {
	t     testing.TB
	dir   string
	cfg   Config
	now   time.Time
	f     *Follower
	agent *agent
	to    *producer.Producer // the agent's
}

func newWorld(t testing.TB, dir string, adjust func(*Config)) *world {
	cfg := DefaultConfig()
	cfg.Name, cfg.Paths, cfg.Category = "test", []string{filepath.Join(dir, "*.log")}, "{file}"
	cfg.Fingerprint = 16
	if adjust != nil {
		adjust(&cfg)
	}
	w := &world{t: t, dir: dir, cfg: cfg, now: time.Now(), agent: &agent{got: map[string][]string{}}}
	w.to = inputstest.NewProducer(t, w.agent.Deliver)
	w.start()
	return w
}

func (w *world) start() {
	w.t.Helper()
	var err error
	if w.f, err = New(w.cfg, inputs.Deps{StateDir: filepath.Join(w.dir, "state")}); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) step() {
	w.now = w.now.Add(2 * time.Second)
	w.f.Step(context.Background(), w.to, w.now)
}

// restart ends the follower and starts another; after a crash that has the positions of the last save.
func (w *world) restart(crash bool) {
	w.t.Helper()
	for _, s := range w.f.sources {
		w.f.closeFile(s)
	}
	if !crash {
		if err := w.f.Close(); err != nil {
			w.t.Fatal(err)
		}
	}
	w.start()
}

func (w *world) path(name string) string { return filepath.Join(w.dir, name) }

func (w *world) write(name, text string) {
	w.t.Helper()
	f, err := os.OpenFile(w.path(name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		w.t.Fatal(err)
	}
	if _, err = f.WriteString(text); err != nil || f.Close() != nil {
		w.t.Fatal(err)
	}
}

func (w *world) do(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) want(category string, lines ...string) {
	w.t.Helper()
	if got := w.agent.got[category]; !slices.Equal(got, lines) {
		w.t.Fatalf("%s has %q, want %q", category, got, lines)
	}
}

func TestFollowsAFile(t *testing.T) {
	w := newWorld(t, t.TempDir(), nil)
	w.write("app.log", "one\ntwo\r\nthr")
	w.step()
	w.want("app", "one", "two")
	w.write("app.log", "ee\n\nfour\n")
	w.step()
	w.want("app", "one", "two", "three", "", "four")
	w.restart(false)
	w.step()
	w.write("app.log", "five\n")
	w.step()
	w.want("app", "one", "two", "three", "", "four", "five")
	w.do(w.f.Close())
}

func TestRotationByRename(t *testing.T) {
	for _, down := range []bool{false, true} {
		t.Run(fmt.Sprintf("down=%v", down), func(t *testing.T) {
			w := newWorld(t, t.TempDir(), nil)
			w.write("app.log", "one\n")
			w.step()
			if down {
				w.restart(false)
			}
			w.write("app.log", "two\n")
			w.do(os.Rename(w.path("app.log"), w.path("app.log.1"))) // no glob matches that
			w.write("app.log.1", "three\nlast without end")
			w.write("app.log", "four\n")
			w.step()
			w.step()
			w.step()
			got := slices.Sorted(slices.Values(w.agent.got["app"]))
			if want := []string{"four", "last without end", "one", "three", "two"}; !slices.Equal(got, want) {
				t.Fatalf("%q, want %q", got, want)
			}
			w.do(w.f.Close())
		})
	}
}

func TestCopyTruncate(t *testing.T) {
	w := newWorld(t, t.TempDir(), func(c *Config) { c.Paths[0] += "*" })
	w.write("app.log", "line number one\nline number two\n")
	w.step()
	w.write("app.log", "line number three\n") // not read before the copy
	text, err := os.ReadFile(w.path("app.log"))
	w.do(err)
	w.do(os.WriteFile(w.path("app.log.1"), text, 0o600))
	w.do(os.Truncate(w.path("app.log"), 0))
	w.write("app.log", "line number four\n")
	w.step()
	w.step()
	got := slices.Sorted(slices.Values(w.agent.all()))
	if want := []string{"line number four", "line number one", "line number three", "line number two"}; !slices.Equal(got, want) {
		t.Fatalf("%q, want %q", got, want)
	}
	w.do(w.f.Close())
}

// A file that was cut and has grown beyond the position is known by its content.
func TestTruncatedAndGrownBeyond(t *testing.T) {
	w := newWorld(t, t.TempDir(), nil)
	w.write("app.log", "old line 1\nold line 2\n")
	w.step()
	w.do(os.Truncate(w.path("app.log"), 0))
	w.write("app.log", "new line 1\nnew line 2\nnew line 3\n")
	w.step()
	w.want("app", "old line 1", "old line 2", "new line 1", "new line 2", "new line 3")
	w.do(w.f.Close())
}

// Files that begin alike are different files.
func TestSameBeginnings(t *testing.T) {
	header := "# the very same header in each file of this program\n"
	w := newWorld(t, t.TempDir(), func(c *Config) { c.Category = "all" })
	w.write("app-1.log", header+"one\n")
	w.step()
	w.write("app-2.log", header+"two\n")
	w.step()
	w.want("all", strings.TrimSpace(header), "one", strings.TrimSpace(header), "two")
	w.do(w.f.Close())
}

func TestRemoved(t *testing.T) {
	w := newWorld(t, t.TempDir(), nil)
	w.write("app.log", "one\ntwo")
	w.step()
	w.do(os.Remove(w.path("app.log")))
	w.step()
	w.want("app", "one", "two") // nothing can follow any more
	w.write("app.log", "one\n") // likely with the same number
	w.step()
	w.want("app", "one", "two", "one")
	w.do(w.f.Close())
}

func TestStartAtTheEnd(t *testing.T) {
	w := newWorld(t, t.TempDir(), func(c *Config) { c.Start = startEnd })
	w.write("app.log", "history\n")
	w.step()
	w.write("app.log", "news\n")
	w.write("late.log", "all of it\n")
	w.step()
	w.want("app", "news")
	w.want("late", "all of it")
	w.do(w.f.Close())
}

func TestLongLines(t *testing.T) {
	for long, want := range map[string][]string{
		longSplit:    {"short", "0123456789", "abcdef", "after"},
		longTruncate: {"short", "0123456789", "after"},
		longDrop:     {"short", "after"},
	} {
		t.Run(long, func(t *testing.T) {
			for _, pieces := range [][]string{{"short\n0123456789abcdef\nafter\n"}, {"short\n0123456789a", "bcd", "ef\naf", "ter\n"}} {
				w := newWorld(t, t.TempDir(), func(c *Config) { c.MaxLine, c.LongLines = 10, long })
				for _, p := range pieces {
					w.write("app.log", p)
					w.step()
					w.restart(false) // that a rest is skipped is part of the position
				}
				w.step()
				w.want("app", want...)
				w.do(w.f.Close())
			}
		})
	}
}

func TestMultiline(t *testing.T) {
	w := newWorld(t, t.TempDir(), func(c *Config) { c.Multiline = `^\d` })
	w.write("app.log", "1 panic\n  at a\n  at b\n2 next\n  at")
	w.f.Step(t.Context(), w.to, w.now)
	w.want("app", "1 panic\n  at a\n  at b")
	w.write("app.log", " c\n")
	w.step()
	w.want("app", "1 panic\n  at a\n  at b")
	w.step() // silence completes it
	w.want("app", "1 panic\n  at a\n  at b", "2 next\n  at c")
	w.do(w.f.Close())
}

func TestPatternNamesTheCategory(t *testing.T) {
	w := newWorld(t, t.TempDir(), func(c *Config) {
		c.Pattern, c.Category, c.PathAttribute = `/(?P<team>[a-z]+)-[^/]*\.log$`, "{team}.{file}", "path"
	})
	w.write("red-x y.log", "a line\n")
	w.write("NOBODY.log", "another\n")
	w.step()
	w.want("red.red-x_y", "a line")
	if len(w.agent.got) != 1 {
		t.Fatalf("%v", w.agent.got)
	}
	w.do(w.f.Close())
}

func TestDeliveryFails(t *testing.T) {
	w := newWorld(t, t.TempDir(), nil)
	w.write("app.log", "one\n")
	w.agent.err = errors.New("no room")
	w.step()
	w.agent.err = nil
	w.step()
	w.want("app", "one")
	w.agent.err = rpc.Errorf(scribev1.Reason_REASON_UNKNOWN_CATEGORY, "unknown category")
	w.write("app.log", "lost\n")
	w.step()
	w.agent.err = nil
	w.write("app.log", "two\n")
	w.step()
	w.want("app", "one", "two")
	w.do(w.f.Close())
}

// Positions are saved while a backlog is read, not only behind it: a crash repeats what came since the last time.
func TestPositionsOfALongDrain(t *testing.T) {
	w := newWorld(t, t.TempDir(), func(c *Config) { c.Batch, c.MaxLine = 64, 62 })
	clock := w.now
	w.f.deps.Clock = func() time.Time { clock = clock.Add(saveInterval); return clock }
	for i := range 100 {
		w.write("a.log", fmt.Sprintf("line %03d\n", i))
	}
	var behind int64 // most bytes that were delivered and not saved, when the next ones came
	w.agent.see = func() {
		list, _, err := loadPositions(w.f.positionsPath())
		if err != nil {
			t.Fatal(err)
		}
		saved := int64(0)
		for _, s := range list {
			saved = s.Position
		}
		behind = max(behind, int64(9*len(w.agent.all()))-saved)
	}
	w.step()
	if n := len(w.agent.all()); n != 100 || behind > 2*64 {
		t.Fatalf("%d lines, at most %d bytes behind", n, behind)
	}
}

func TestDamagedPositions(t *testing.T) {
	w := newWorld(t, t.TempDir(), nil)
	w.write("app.log", "one\n")
	w.step()
	w.write("app.log", "two\n")
	w.step()
	w.do(w.f.Close())
	w.do(os.WriteFile(w.f.positionsPath(), []byte("scribe follow positions 1 00000000\n[]"), 0o600))
	w.start()
	w.write("app.log", "three\n")
	w.step()
	// The save before had the first line only.
	w.want("app", "one", "two", "two", "three")
	w.do(w.f.Close())
}

func TestBoundsOpenFiles(t *testing.T) {
	w := newWorld(t, t.TempDir(), func(c *Config) { c.MaxOpen, c.MaxFiles, c.Category = 2, 5, "all" })
	for i := range 8 {
		w.write(fmt.Sprintf("app-%d.log", i), "a line\n")
	}
	for range 3 {
		w.step()
		if w.f.opened > 2 || len(w.f.sources) > 5 {
			t.Fatalf("%d files open of %d", w.f.opened, len(w.f.sources))
		}
	}
	if n := len(w.agent.got["all"]); n != 5 {
		t.Fatalf("%d lines", n)
	}
	w.do(w.f.Close())
}

func TestRun(t *testing.T) {
	dir := t.TempDir()
	w := newWorld(t, dir, func(c *Config) { c.Interval = units.Duration(time.Millisecond) })
	w.write("app.log", "one\n")
	reg := prometheus.NewRegistry()
	f, err := New(w.cfg, inputs.Deps{StateDir: filepath.Join(dir, "run"), Registerer: reg})
	w.do(err)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	agent := inputstest.NewProducer(t, func(ctx context.Context, category string, messages []producer.Message) error {
		defer cancel() // the first delivery ends the run
		return w.agent.Deliver(ctx, category, messages)
	})
	if err := f.Run(ctx, agent, func() {}); err != nil || f.Name() != "test" {
		t.Fatal(err)
	}
	w.want("app", "one")
	if n, err := reg.Gather(); err != nil || len(n) != 0 {
		t.Fatalf("%d metrics are left, %v", len(n), err)
	}
}

// Whatever happens to a log, its lines arrive, each file's in order, and once unless the follower crashed.
func TestEveryLineArrives(t *testing.T) {
	root := t.TempDir()
	if memory, err := os.MkdirTemp("/dev/shm", "follow-"); err == nil { //nolint:usetesting // where a sync costs nothing
		root = memory
		defer func() { _ = os.RemoveAll(memory) }()
	}
	n := 0
	rapid.Check(t, func(t *rapid.T) {
		n++
		dir := filepath.Join(root, fmt.Sprint(n))
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		model(t, dir)
	})
}

func model(t *rapid.T, dir string) {
	tb := &fatal{t: t}
	copies := rapid.Bool().Draw(t, "globs match rotated names")
	w := newWorld(tb, dir, func(c *Config) {
		if copies {
			c.Paths[0] += "*"
		}
		c.Batch = units.Bytes(rapid.IntRange(1, 200).Draw(t, "batch"))
		c.MaxOpen = rapid.IntRange(1, 3).Draw(t, "open")
	})
	var (
		lines, rotated, incarnation int
		partial                     bool
		unseen                      bool // written since the file was created and before a look
		crashed                     bool
		want                        []string
	)
	exists := func() bool { _, err := os.Stat(w.path("app.log")); return err == nil }
	step := func() {
		w.step()
		unseen = false
	}
	finish := func() {
		if partial {
			w.write("app.log", " end\n")
			partial = false
		}
	}
	t.Repeat(map[string]func(*rapid.T){
		"append": func(t *rapid.T) {
			finish()
			unseen = unseen || !exists()
			for range rapid.IntRange(1, 5).Draw(t, "lines") {
				lines++
				want = append(want, fmt.Sprintf("file %03d line %06d end", incarnation, lines))
				w.write("app.log", want[len(want)-1]+"\n")
			}
		},
		"begin a line": func(*rapid.T) {
			finish()
			unseen = unseen || !exists()
			lines++
			want = append(want, fmt.Sprintf("file %03d line %06d end", incarnation, lines))
			w.write("app.log", strings.TrimSuffix(want[len(want)-1], " end"))
			partial = true
		},
		"rename": func(*rapid.T) {
			if !exists() {
				return
			}
			finish()
			if unseen && !copies {
				step() // nobody can know of it
			}
			rotated++
			incarnation++
			w.do(os.Rename(w.path("app.log"), w.path(fmt.Sprintf("app.log.%d", rotated))))
			step()
		},
		"copy and cut": func(*rapid.T) {
			if !exists() {
				return
			}
			finish()
			step() // what is not read before is lost where no glob matches the copy
			rotated++
			incarnation++
			text, err := os.ReadFile(w.path("app.log"))
			w.do(err)
			w.do(os.WriteFile(w.path(fmt.Sprintf("app.log.%d", rotated)), text, 0o600))
			w.do(os.Truncate(w.path("app.log"), 0))
		},
		"remove": func(*rapid.T) {
			if !exists() {
				return
			}
			finish()
			step()
			incarnation++
			w.do(os.Remove(w.path("app.log")))
			step()
		},
		"step":    func(*rapid.T) { step() },
		"restart": func(*rapid.T) { w.restart(false) },
		"crash": func(*rapid.T) {
			w.restart(true)
			crashed = true
		},
	})
	finish()
	for range 4 {
		step()
	}
	w.do(w.f.Close())
	check(t, w.agent.all(), want, crashed)
}

func check(t *rapid.T, got, want []string, crashed bool) {
	times := map[string]int{}
	newest := map[string]string{} // by file
	for _, line := range got {
		if times[line]++; times[line] > 1 {
			if !crashed {
				t.Fatalf("%q came twice: %q", line, got)
			}
			continue
		}
		file := line[:min(len(line), 8)]
		if line <= newest[file] {
			t.Fatalf("%q came after %q", line, newest[file])
		}
		newest[file] = line
	}
	for _, line := range want {
		if times[line] == 0 {
			t.Fatalf("%q is missing: %q", line, got)
		}
		delete(times, line)
	}
	for line := range times {
		t.Fatalf("%q was never written", line)
	}
}

// fatal is a testing.TB as far as the world needs one.
type fatal struct {
	testing.TB
	t *rapid.T
}

func (f *fatal) Helper()                      {}
func (f *fatal) Cleanup(fn func())            { f.t.Cleanup(fn) }
func (f *fatal) Context() context.Context     { return f.t.Context() }
func (f *fatal) Fatal(args ...any)            { f.t.Fatal(args...) }
func (f *fatal) Fatalf(s string, args ...any) { f.t.Fatalf(s, args...) }
