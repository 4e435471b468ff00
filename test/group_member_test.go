package test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"scribe/consumer"
	"scribe/test/program"
)

// groupMember is the first argument that makes the test binary a member of a group: runMember.
const groupMember = "group-member"

// A member keeps a file of what it does. It survives SIGKILL, since the kernel has it.
//
//	D key time   a message was yielded
//	S n          commit n is about to be made, of all that was yielded since the one before
//	C n time     it was acknowledged, when its answer was there
//	F n          it was refused: others have some of it
//	L            buckets were lost: what of them is not committed may come again
//
// Times are of the monotonic clock of the machine, in nanoseconds, so that those of different processes can be compared.

// runMember reads the category "log" in the group "readers" until SIGTERM. Arguments: server, name, file, messages in a commit. It looks at
// each message for a millisecond.
func runMember(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := member(ctx, args[0], args[1], args[2], args[3]); err != nil {
		fmt.Fprintln(os.Stderr, "member", args[1], "ends:", err)
		return 1
	}
	return 0
}

func member(ctx context.Context, server, name, file, every string) error {
	batch, err := strconv.Atoi(every)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(file, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	m := &memberRun{file: f}
	m.group, err = consumer.NewGroup(server, "log", "readers",
		consumer.WithMember(name), consumer.WithGroupTTL(2*time.Second), consumer.WithStart(consumer.Earliest()), consumer.WithAutoCommit(0),
		consumer.WithLogger(slog.New(slog.NewTextHandler(os.Stderr, nil))),
		consumer.WithOnRevoked(func(r consumer.Rebalance) {
			if r.Lost {
				fmt.Fprintln(m.file, "L")
				return
			}
			_ = m.commit(ctx) // an error is in the file
		}),
	)
	if err != nil {
		return err
	}
	for rec, err := range m.group.Records(ctx) {
		gap := new(consumer.GapError)
		switch {
		case errors.As(err, &gap):
			return err
		case err != nil && ctx.Err() == nil:
			return err
		case err != nil:
			if err := m.commit(context.WithoutCancel(ctx)); err != nil && !errors.Is(err, consumer.ErrFenced) {
				return err
			}
			return m.group.Close()
		}
		fmt.Fprintf(m.file, "D %s %d\n", strings.ReplaceAll(string(rec.Payload), " ", "-"), monotonic())
		<-time.After(time.Millisecond)
		if m.n++; m.n >= batch || m.group.Buffered() == 0 {
			if err := m.commit(ctx); err != nil && !errors.Is(err, consumer.ErrFenced) && ctx.Err() == nil {
				return err
			}
		}
	}
	return m.group.Close()
}

type memberRun struct {
	group   *consumer.Group
	file    *os.File
	n       int // messages since the last commit
	commits int
}

// commit writes down what is to be committed, commits, and writes down that it was. It runs between two messages, in whichever goroutine.
func (m *memberRun) commit(ctx context.Context) error {
	if m.n == 0 {
		return m.group.Commit(ctx)
	}
	m.commits++
	fmt.Fprintf(m.file, "S %d\n", m.commits)
	m.n = 0
	err := m.group.Commit(ctx)
	switch {
	case err == nil:
		fmt.Fprintf(m.file, "C %d %d\n", m.commits, monotonic())
	case errors.Is(err, consumer.ErrFenced):
		fmt.Fprintf(m.file, "F %d\n", m.commits)
	}
	return err
}

// monotonic is a clock that all processes of the machine share.
func monotonic() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err)
	}
	return ts.Nano()
}

// groupProcess is a member that runs as a process of its own.
type groupProcess struct {
	*program.Process

	t    *testing.T
	file string
}

// launchMember starts one.
func launchMember(t *testing.T, server, name, file string, every int) *groupProcess {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return &groupProcess{program.Other(t, self, groupMember, server, name, file, strconv.Itoa(every)), t, file}
}

// Stop ends a member in an orderly way. One that has only just been started does not know of SIGTERM yet; once it has its file it does.
func (g *groupProcess) Stop() {
	g.t.Helper()
	eventually(g.t, waitLimit, "the member has begun", func() bool {
		_, err := os.Stat(g.file)
		return err == nil
	})
	g.Process.Stop()
}

// segment is what a member was given between two commits, or before it ended.
type segment struct {
	file         string
	keys         map[string]int64 // with when they were yielded, the last time
	acknowledged int64            // 0 = not known to be
	refused      bool
	lost         bool // some of it was taken away
}

// segments reads the files of all members.
func segments(t *testing.T, dir string) (out []*segment) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		last := &segment{file: filepath.Base(file), keys: map[string]int64{}}
		next := last // D's go here, until the S that covers them
		scan := bufio.NewScanner(bytes.NewReader(text))
		for scan.Scan() {
			fields := strings.Fields(scan.Text())
			switch fields[0] {
			case "D":
				if _, twice := next.keys[fields[1]]; twice && !next.lost {
					t.Errorf("%s has %s twice between two commits", file, fields[1])
				}
				next.keys[fields[1]], _ = strconv.ParseInt(fields[2], 10, 64)
			case "S":
				last, next = next, &segment{file: filepath.Base(file), keys: map[string]int64{}}
				out = append(out, last)
			case "C":
				last.acknowledged, _ = strconv.ParseInt(fields[2], 10, 64)
			case "F":
				last.refused = true
			case "L":
				next.lost = true
			}
		}
		out = append(out, next)
	}
	return out
}

// checkSegments fails unless every message was given to somebody who tried to commit it, none was committed twice, and none was given to
// anybody after its commit was acknowledged, but for so many: a process may be stopped between its last look at the clock and the message.
func checkSegments(t *testing.T, all []*segment, want []string, late int) {
	t.Helper()
	type commit struct {
		by *segment
		at int64
	}
	committed, given := map[string]commit{}, map[string]int{}
	acknowledged, refused := 0, 0
	for _, s := range all {
		for key := range s.keys {
			given[key]++
			if s.acknowledged == 0 {
				continue
			}
			if c, ok := committed[key]; ok {
				t.Errorf("%s was committed by %s and by %s", key, c.by.file, s.file)
			}
			committed[key] = commit{s, s.acknowledged}
		}
		if s.acknowledged > 0 {
			acknowledged++
		}
		if s.refused {
			refused++
		}
	}
	again, missing := 0, 0
	for _, s := range all {
		for key, at := range s.keys {
			if c, ok := committed[key]; ok && c.by != s && at > c.at {
				if late--; late >= 0 {
					continue
				}
				t.Errorf("%s was given to %s %v after the commit by %s was acknowledged", key, s.file, time.Duration(at-c.at), c.by.file)
			}
		}
	}
	for _, key := range want {
		switch {
		case given[key] == 0:
			if missing++; missing < 10 {
				t.Errorf("%s was given to nobody", key)
			}
		case given[key] > 1:
			again++
		}
	}
	t.Logf("%d commits, %d acknowledged, %d refused; %d messages, %d of them given more than once, %d acknowledged", len(all), acknowledged, refused, len(want), again, len(committed))
	if missing > 0 {
		t.Errorf("%d of %d messages were given to nobody", missing, len(want))
	}
	if len(given) > len(want) {
		t.Errorf("%d messages were given, %d were written", len(given), len(want))
	}
}
