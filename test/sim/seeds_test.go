package sim

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/cryptotest"
	"testing/synctest"
	"time"

	"scribe/internal/testkit/testsize"
)

var (
	seedCount = flag.Int("seeds", 100, "how many seeds TestSeeds runs; fewer with -short")
	firstSeed = flag.Uint64("first-seed", 1, "the first of them")
	minutes   = flag.Int("minutes", 2, "for how many virtual minutes faults come")
	keep      = flag.String("keep", filepath.Join(os.TempDir(), "scribe-seeds"), "folder for the plans and timelines of failed seeds")
	shrinking = flag.Int("shrink", 0, "how many smaller plans are tried after a failure")
	soak      = flag.Duration("soak", 0, "run seeds for this long, whatever -seeds says")
	replays   = flag.Int("replays", 1, "how often each seed is run; with more than 1, how many runs were the same is logged")
	untilFail = flag.Bool("until-failure", false, "begin no seed after one has failed")
	draws     = flag.String("draw", "", "kinds of faults that every seed draws, with commas between: "+strings.Join(forcedKinds, ", "))
	planFile  = flag.String("plan", "", "run this plan, as a failure has left it, instead of seeds")
)

const (
	// childEnv names the file of the plan that a child process runs. Its output goes to that name with ".out".
	childEnv = "SCRIBE_SIM_PLAN"
	// openEnv makes the child try to open a file and a socket before its run.
	openEnv = "SCRIBE_SIM_OPEN"
)

const (
	// seedLimit is the processor time after which a seed counts as hung: in real time a busy machine would decide.
	seedLimit = 5 * time.Minute
	// idleLimit is for how many looks, one a second, a seed may use less than idleUse of processor time before it counts as hung: what waits
	// for something that is not virtual uses none. A process that gets no processor does not look either, so a busy machine does not decide.
	idleLimit = 60
	idleUse   = 200 * time.Millisecond
	// hangLimit is the real time after which a child is ended that can't even look.
	hangLimit = time.Hour
	// reportTime is how long before the time limit of the package children are ended, so that what they were doing is still told.
	reportTime = time.Minute
	// hangEnv makes the child hang before its run.
	hangEnv = "SCRIBE_SIM_HANG"
)

// childrenEnd is when all children are ended, the zero time if the package has no time limit.
var childrenEnd time.Time

// errTimeOver is why a child was ended at childrenEnd.
var errTimeOver = errors.New("the time limit of the package (-timeout) is near")

// result is what a child says of its run.
type result struct {
	Violations []string
	// Virtual is how long the run took, Real the processor time; Starts how often a process began, Fatal how often one gave up by itself.
	Virtual, Real                time.Duration
	Starts, Fatal                int
	Acked, Failed, Unknown, Read int64
	Puts, Gets, Faults, Followed int64
	// Calls are calls at metadata logs that were recorded; Called is 1 if there were any, Undecided if their order was not found in time.
	Calls, Called, Undecided int64
	// Of cells of nodes: terms of replicas that led, changes in etcd without an answer.
	Terms, Unanswered int64
	Digest            uint64 // see digest
	// Drawn is what lives of processes and writers drew: random bits of blobs' keys, ids of producers.
	Drawn    map[string][]string
	Timeline []string
}

// TestMain leaves out what only a child process runs, and what only runs when it is asked for.
func TestMain(m *testing.M) {
	flag.Parse()
	var skip []string
	if os.Getenv(childEnv) == "" {
		skip = append(skip, "^TestPlan$")
	}
	if *planted == "" {
		skip = append(skip, "^TestPlanted$")
	}
	if err := flag.Set("test.skip", strings.Join(skip, "|")); err != nil {
		panic(err)
	}
	if limit, ok := flag.Lookup("test.timeout").Value.(flag.Getter).Get().(time.Duration); ok && limit > 0 {
		childrenEnd = time.Now().Add(limit - min(reportTime, limit/2))
	}
	os.Exit(m.Run())
}

// TestPlan runs one plan; TestSeeds starts it as a child.
func TestPlan(t *testing.T) {
	path := os.Getenv(childEnv)
	p, err := readPlan(path)
	if err != nil {
		t.Fatal(err)
	}
	out, err := os.Create(path + ".out")
	if err != nil {
		t.Fatal(err)
	}
	// A simulated cell opens no real file and no real socket: the process can't.
	if err := sealProcess(); err != nil {
		t.Fatal(err)
	}
	if os.Getenv(openEnv) != "" {
		_, ferr := os.Open(path)
		_, serr := net.Listen("tcp", "127.0.0.1:0")
		t.Fatalf("a file: %v; a socket: %v", ferr, serr)
	}
	go endIfHung()
	if os.Getenv(hangEnv) != "" {
		select {}
	}
	checking := newCallChecker()
	cryptotest.SetGlobalRandom(t, p.Seed) // what others than the roles draw, TLS and libraries
	synctest.Test(t, func(*testing.T) {
		w := newWorld(p, slog.LevelInfo)
		w.checking = checking
		w.run()
		r := w.result()
		r.Real = cpuTime()
		if err := json.NewEncoder(out).Encode(r); err != nil {
			panic(err)
		}
		if err := out.Close(); err != nil {
			panic(err)
		}
		os.Exit(0) // what killed processes left running would be a deadlock to the bubble
	})
}

// endIfHung ends the process, with the stacks of all goroutines, once its seed counts as hung.
func endIfHung() {
	var idle int
	var before time.Duration
	for range time.Tick(time.Second) {
		used := cpuTime()
		if idle++; used-before > idleUse {
			before, idle = used, 0
		}
		if used > seedLimit || idle >= idleLimit {
			endWithStacks()
		}
	}
}

func (w *world) result() result {
	w.mu.Lock()
	defer w.mu.Unlock()
	r := result{
		Violations: w.violations, Virtual: time.Since(w.began), Timeline: w.timeline,
		Puts: w.store.puts.Load(), Gets: w.store.gets.Load(), Faults: w.faults.Load(), Followed: w.followed.Load(),
	}
	for _, x := range w.writers {
		r.Acked += x.acked.Load()
		r.Failed += x.failed.Load()
		r.Unknown += x.unknown.Load()
	}
	for _, b := range w.sequenced {
		b.mu.Lock()
		r.Read += max(0, int64(b.next)-int64(w.baseOf(b.plan.Category))) //nolint:gosec // far below 2^63
		b.mu.Unlock()
	}
	for _, f := range w.followers {
		r.Read += int64(f.Trail.Len())
	}
	for _, p := range w.processes {
		p.mu.Lock()
		r.Starts += p.lives
		r.Fatal += p.fatal
		p.mu.Unlock()
	}
	w.store.mu.Lock()
	r.Drawn = maps.Clone(w.store.drawn)
	w.store.mu.Unlock()
	r.Digest = w.digest.get()
	w.etcd.set(func(e *etcd) { r.Terms = int64(e.terms) }) //nolint:gosec // a few
	r.Unanswered, r.Calls, r.Undecided = w.etcd.unanswered.Load(), w.calls.Load(), w.undecided.Load()
	r.Called = min(1, r.Calls)
	return r
}

// runPlan runs a plan in a child process. The error says how the child ended if it did not end well.
func runPlan(ctx context.Context, dir string, p plan, env ...string) (result, error) {
	path := filepath.Join(dir, fmt.Sprintf("seed%d.json", p.Seed))
	text, err := json.MarshalIndent(p, "", "\t")
	if err != nil {
		return result{}, err
	}
	if err := os.WriteFile(path, text, 0o600); err != nil {
		return result{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, hangLimit)
	defer cancel()
	if !childrenEnd.IsZero() {
		ctx, cancel = context.WithDeadlineCause(ctx, childrenEnd, errTimeOver)
		defer cancel()
	}
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestPlan$", "-test.timeout=0") //nolint:gosec // this test's own binary
	cmd.Env = append(os.Environ(), childEnv+"="+path, "GOGC=400", "GOMAXPROCS="+fmt.Sprint(processorsOf(p.Seed)))
	cmd.Env = append(cmd.Env, env...)
	cmd.Cancel = func() error { return cmd.Process.Signal(stackSignal) } // prints where everybody stands
	cmd.WaitDelay = 10 * time.Second
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	runErr := cmd.Run()
	answer, err := os.ReadFile(path + ".out")
	var r result
	if err == nil && len(answer) > 0 {
		err = json.Unmarshal(answer, &r)
		return r, errors.Join(err, runErr)
	}
	r.Timeline = []string{output.String()}
	return r, fmt.Errorf("the process ended without a result: %w\n%s", errors.Join(runErr, context.Cause(ctx)), tailOf(notDurable(output.String()), 30000))
}

// processorsOf returns how many processors run a seed. Two make other schedules possible, and need twice as much time of them.
func processorsOf(seed uint64) int {
	if seed%8 == 0 {
		return 2
	}
	return 1
}

// notDurable leaves out the stacks of goroutines that wait as they should. Those that are left keep a bubble's time from going on.
func notDurable(output string) string {
	blocks := slices.DeleteFunc(strings.Split(output, "\n\n"), func(block string) bool {
		header, _, _ := strings.Cut(block, "\n")
		return strings.Contains(header, "(durable)")
	})
	return strings.Join(blocks, "\n\n")
}

func tailOf(text string, n int) string {
	if len(text) > n {
		return text[:n/2] + "\n...\n" + text[len(text)-n/2:]
	}
	return text
}

// failure says in words why a run failed, "" if it did not.
func (r *result) failure(err error) string {
	switch {
	case err != nil:
		return err.Error()
	case len(r.Violations) > 0:
		return strings.Join(r.Violations, "\n")
	}
	return ""
}

// TestSeeds runs seeds, as many at a time as there are processors.
func TestSeeds(t *testing.T) {
	s := &seedRunner{T: t, dir: t.TempDir()}
	plans := make(chan plan)
	var running sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		running.Go(func() {
			for p := range plans {
				if !s.hasEnded() {
					s.runSeed(p)
				}
			}
		})
	}
	s.drawPlans(plans)
	close(plans)
	running.Wait()
	t.Logf("%d seeds: %v", s.seeds, &s.total)
	if isTimeOver() {
		t.Errorf("after %d seeds: %v", s.seeds, errTimeOver)
	}
	if *replays > 1 {
		t.Logf("%d of %d seeds were the same in %d runs each", s.same, s.seeds, *replays)
	}
	if s.seeds >= 10 && (s.total.Acked == 0 || s.total.Read == 0) {
		t.Errorf("nothing was tested: %v", &s.total)
	}
	if s.total.Undecided > 1+s.total.Called/20 {
		t.Errorf("of %d seeds with calls at metadata logs the order of %d was not found in time", s.total.Called, s.total.Undecided)
	}
}

// seedRunner runs plans and adds up what they did.
type seedRunner struct {
	*testing.T
	dir string

	mu                  sync.Mutex
	total               result
	seeds, same, failed int
}

// maxFailures is after how many failed seeds no further one begins: more would fill a disk with the same.
const maxFailures = 50

// hasEnded reports whether no further seed is to begin.
func (s *seedRunner) hasEnded() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return *untilFail && s.Failed() || s.failed >= maxFailures || isTimeOver()
}

func isTimeOver() bool { return !childrenEnd.IsZero() && time.Now().After(childrenEnd) }

// drawPlans hands out the plans that the flags ask for.
func (s *seedRunner) drawPlans(plans chan<- plan) {
	length := time.Duration(*minutes) * time.Minute
	if err := checkDraws(*draws); err != nil {
		s.Error("-draw: ", err)
		return
	}
	switch {
	case *planFile != "":
		p, err := readPlan(*planFile)
		if err != nil {
			s.Fatal(err)
		}
		plans <- p
	case *soak > 0:
		for begin, seed := time.Now(), *firstSeed; time.Since(begin) < *soak && !s.hasEnded(); seed++ {
			plans <- drawPlan(seed, length, *draws)
		}
	default:
		for i := range max(1, *seedCount/testsize.Test(1, 10, 20)) {
			plans <- drawPlan(*firstSeed+uint64(i), length, *draws) //nolint:gosec // not negative
		}
	}
}

// runSeed runs a plan as often as it shall be run.
func (s *seedRunner) runSeed(p plan) {
	digests, ended := map[uint64]bool{}, 0
	for range *replays {
		r, err := runPlan(s.Context(), s.dir, p)
		s.mu.Lock()
		s.total.add(&r)
		s.mu.Unlock()
		why := r.failure(err)
		if err == nil {
			digests[r.Digest] = true
			ended++
		}
		if p.Digest != 0 {
			s.Logf("seed %d: the same schedule as when it failed: %v", p.Seed, r.Digest == p.Digest)
		}
		if why != "" {
			reportFailure(s.T, s.dir, p, r, why)
			s.mu.Lock()
			s.failed++
			s.mu.Unlock()
		} else if testing.Verbose() {
			s.Logf("seed %d: %v", p.Seed, &r)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.seeds++; len(digests) == 1 && ended == *replays {
		s.same++
	}
}

func readPlan(path string) (p plan, err error) {
	text, err := os.ReadFile(path) //nolint:gosec // the user's own
	if err == nil {
		err = json.Unmarshal(text, &p)
	}
	return p, err
}

// TestHungSeed: a seed that hangs fails with its plan and its stacks, before the time limit of the package ends everything without them.
func TestHungSeed(t *testing.T) {
	keep := t.TempDir()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestSeeds$", "-test.timeout=20s", "-seeds=1", "-keep="+keep) //nolint:gosec // this test's own binary
	cmd.Env = append(os.Environ(), hangEnv+"=1")
	out, err := cmd.CombinedOutput()
	if _, failed := errors.AsType[*exec.ExitError](err); !failed {
		t.Fatalf("the run ended with %v\n%s", err, out)
	}
	for _, want := range []string{"seed 1 failed", errTimeOver.Error(), "[select (no cases)]", "sim.TestPlan", "its plan and its timeline"} {
		if !bytes.Contains(out, []byte(want)) {
			t.Errorf("the report lacks %q", want)
		}
	}
	if bytes.Contains(out, []byte("panic: test timed out")) {
		t.Error("the time limit of the package ended it")
	}
	if _, err := readPlan(filepath.Join(keep, "seed1.json")); err != nil {
		t.Error(err)
	}
	if t.Failed() {
		t.Logf("%s", out)
	}
}

// TestNothingReal: the process that runs a seed can open no file and no socket, so that every seed shows that a simulated cell needs none.
func TestNothingReal(t *testing.T) {
	_, err := runPlan(t.Context(), t.TempDir(), drawPlan(2, 2*time.Minute, ""), openEnv+"=1")
	if want := syscall.EMFILE.Error(); err == nil || strings.Count(err.Error(), want) != 2 {
		t.Errorf("%v: want twice %q", err, want)
	}
}

func (r *result) add(o *result) {
	r.Virtual += o.Virtual
	r.Real += o.Real
	r.Starts += o.Starts
	r.Fatal += o.Fatal
	r.Acked += o.Acked
	r.Failed += o.Failed
	r.Unknown += o.Unknown
	r.Read += o.Read
	r.Puts += o.Puts
	r.Gets += o.Gets
	r.Faults += o.Faults
	r.Followed += o.Followed
	r.Terms += o.Terms
	r.Unanswered += o.Unanswered
	r.Calls += o.Calls
	r.Called += o.Called
	r.Undecided += o.Undecided
}

func (r *result) String() string {
	text := fmt.Sprintf("%v virtual, %v of a processor, %d faults, %d starts, %d fatal, %d acked, %d failed, %d unknown, %d read, %d puts, %d gets, %d frames followed others",
		r.Virtual.Round(time.Second), r.Real.Round(10*time.Millisecond), r.Faults, r.Starts, r.Fatal, r.Acked, r.Failed, r.Unknown, r.Read, r.Puts, r.Gets, r.Followed)
	if r.Calls > 0 {
		text += fmt.Sprintf("; %d calls at metadata logs", r.Calls)
	}
	if r.Terms > 0 {
		text += fmt.Sprintf("; replicas: %d terms, %d changes without an answer", r.Terms, r.Unanswered)
	}
	return text
}

// reportFailure saves the plan and the timeline of a failure, after an attempt to shrink the plan.
func reportFailure(t *testing.T, dir string, p plan, r result, why string) {
	t.Helper()
	if *shrinking > 0 {
		p, r, why = shrink(t, dir, p, r, why)
	}
	p.Digest = r.Digest
	name := filepath.Join(*keep, fmt.Sprintf("seed%d", p.Seed))
	text, err := json.MarshalIndent(p, "", "\t")
	if err == nil {
		err = errors.Join(os.MkdirAll(*keep, 0o750), os.WriteFile(name+".json", text, 0o600),
			os.WriteFile(name+".timeline", []byte(p.String()+strings.Join(r.Timeline, "\n")+"\n"+why+"\n"), 0o600))
	}
	end := strings.Join(r.Timeline[max(0, len(r.Timeline)-reportedLines):], "\n")
	t.Errorf("seed %d failed: %s\n%s%s\nits plan and its timeline: %s.* %v", p.Seed, tailOf(why, 6000), p.String(), tailOf(end, 20000), name, err)
}

// reportedLines is how many lines from the end of the timeline are in the report of a failure.
const reportedLines = 100

// shrinkList leaves out of a list what try does without, one after another.
func shrinkList[T any](list []T, try func(left []T) bool) {
	for at := range slices.Backward(list) {
		if left := slices.Delete(slices.Clone(list), at, at+1); try(left) {
			list = left
		}
	}
}

// shrink looks for a smaller plan that fails, too: without a fault, a process, a client, a category, or a part of its length. What depends on the scheduler
// does not fail every time, so each plan is tried twice.
func shrink(t *testing.T, dir string, p plan, r result, why string) (plan, result, string) {
	t.Helper()
	tries := *shrinking
	try := func(smaller plan) bool {
		for range 2 {
			if tries--; tries < 0 {
				return false
			}
			sr, err := runPlan(t.Context(), dir, smaller)
			if sw := sr.failure(err); sw != "" {
				p, r, why = smaller, sr, sw
				return true
			}
		}
		return false
	}
	for part := len(p.Faults); part > 0; part /= 2 {
		for at := 0; at+part <= len(p.Faults); {
			smaller := p
			smaller.Faults = slices.Delete(slices.Clone(p.Faults), at, at+part)
			if !try(smaller) {
				at += part
			}
		}
	}
	for _, layout := range []string{"one", "nodes"} {
		if smaller := p.inLayout(layout); len(smaller.Processes) < len(p.Processes) {
			try(smaller)
		}
	}
	for at := len(p.Writers) - 1; at >= 0 && len(p.Writers) > 1; at-- {
		smaller := p
		smaller.Writers = slices.Delete(slices.Clone(p.Writers), at, at+1)
		try(smaller)
	}
	shrinkList(p.Readers, func(left []readerPlan) bool { smaller := p; smaller.Readers = left; return try(smaller) })
	shrinkList(p.Groups, func(left []groupPlan) bool { smaller := p; smaller.Groups = left; return try(smaller) })
	shrinkList(p.Queries, func(left []queryPlan) bool { smaller := p; smaller.Queries = left; return try(smaller) })
	shrinkList(p.KeyReaders, func(left []keyReaderPlan) bool { smaller := p; smaller.KeyReaders = left; return try(smaller) })
	if used := p.usedCategories(); len(used) < len(p.Categories) {
		smaller := p
		smaller.Categories = used
		try(smaller)
	}
	last := time.Duration(0)
	for _, f := range p.Faults {
		last = max(last, f.At+f.For)
	}
	if smaller := p; last+10*time.Second < p.Length {
		smaller.Length = last + 10*time.Second
		try(smaller)
	}
	return p, r, why
}
