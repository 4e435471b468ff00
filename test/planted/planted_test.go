//go:build planted

package planted

import (
	"os"
	"path/filepath"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"scribe/test/history"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// countRuns counts how often a test ran, in a folder that the environment names.
func countRuns(t *testing.T) int {
	file := filepath.Join(os.Getenv("SCRIBE_PLANTED"), t.Name())
	runs, err := os.ReadFile(file)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, append(runs, '.'), 0o600); err != nil {
		t.Fatal(err)
	}
	return len(runs) + 1
}

func TestSlowOnce(t *testing.T) {
	if countRuns(t) == 1 {
		t.Fatal("no answer within 5s")
	}
}

// TestSlowAndLogs logs words of safety, and fails over time.
func TestSlowAndLogs(t *testing.T) {
	t.Logf("%d packets were lost", 3)
	if countRuns(t) == 1 {
		t.Fatal("no answer within 5s")
	}
}

// TestLostLog reports lost data in a line of source that has a word like the call that logs.
func TestLostLog(t *testing.T) {
	countRuns(t)
	r := struct{ LogCount int }{LogCount: 3}
	t.Errorf("%d messages were lost", r.LogCount)
}

func TestSlowTwice(t *testing.T) {
	t.Run("part", func(t *testing.T) {})
	if countRuns(t) <= 2 {
		t.Fatal("no answer within 5s")
	}
}

func TestSlowAlways(t *testing.T) {
	countRuns(t)
	t.Error("no answer within 5s")
}

// TestSlowThenUnsafe fails over time first, and over safety when it is run again.
func TestSlowThenUnsafe(t *testing.T) {
	if countRuns(t) == 1 {
		t.Fatal("no answer within 5s")
	}
	t.Error("message 7 was lost")
}

func TestSkipped(t *testing.T) { t.Skip("wants a program that is not here") }

func TestHistoryViolation(t *testing.T) {
	countRuns(t)
	h := history.New()
	h.Category("c", history.Guarantees{})
	attempt := h.Begin("c", 0, history.Message{ID: history.ID{Writer: "w"}})
	attempt.Acked(0, history.Committed)
	if err := h.Check(h.Read("c"), history.Committed).Err(); err != nil {
		t.Error("after the run:", err)
	}
}

func TestLostData(t *testing.T) {
	countRuns(t)
	t.Errorf("%d messages were lost", 3)
}

func TestDuplicatedData(t *testing.T) {
	countRuns(t)
	t.Run("reader", func(t *testing.T) { t.Error("message 7 was delivered twice") })
}

func TestDamagedData(t *testing.T) {
	countRuns(t)
	t.Error("payload 7/0/1@3 is damaged: checksum")
}

// TestDataRace is caught with -race only; without, it passes.
func TestDataRace(t *testing.T) {
	countRuns(t)
	n := 0
	var both sync.WaitGroup
	for range 2 {
		both.Go(func() { n++ })
	}
	both.Wait()
	t.Log(n)
}

func TestPanic(t *testing.T) {
	countRuns(t)
	var m map[string]int
	m["a"] = 1
}

// TestDeadlock hangs until the time limit of its package.
func TestDeadlock(t *testing.T) {
	countRuns(t)
	var mu sync.Mutex
	mu.Lock()
	mu.Lock()
}

func TestLeak(t *testing.T) {
	countRuns(t)
	go func() { select {} }()
}

// BenchmarkLosing fails.
func BenchmarkLosing(b *testing.B) {
	for b.Loop() {
		b.Error("message 7 was lost")
	}
}
