package test

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"scribe/consumer"
	"scribe/internal/transport/rpc"
	"scribe/producer"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/test/program"
)

// TestRevocationUnderLoad: when a token is revoked and a grant taken, its writers and readers end within seconds, while those of
// others go on without a failure.
func TestRevocationUnderLoad(t *testing.T) {
	c := startClosed(t)
	for _, name := range []string{"a", "b"} {
		program.OK(t, nil, "category", "create", name)
	}
	program.OK(t, nil, "grant", "alice", "write,read:a")
	revoked, kept := c.issue("--can", "write,read:a"), c.issue("--can", "write,read:b")
	granted := c.issue("--name", "alice")
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	failed := map[string]chan error{}
	live := map[string]chan struct{}{}
	run := func(name, token, category string) {
		fail, alive := make(chan error, 2), make(chan struct{}, 1)
		failed[name], live[name] = fail, alive
		p, err := producer.New(c.URL, producer.WithToken(token), producer.WithLinger(0))
		if err != nil {
			t.Fatal(err)
		}
		r, err := consumer.New(c.URL, category, consumer.WithToken(token), consumer.WithStart(consumer.Earliest()), consumer.WithRetryTimeout(waitLimit))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _, _ = p.Close(context.Background()), r.Close() })
		go func() {
			for ctx.Err() == nil {
				if err := p.Write(ctx, category, producer.Message{Payload: []byte(strings.Repeat("x", 100))}); err != nil {
					fail <- err
					return
				}
			}
		}()
		go func() {
			for _, err := range r.Records(ctx) {
				if err != nil {
					fail <- err
					return
				}
				select {
				case alive <- struct{}{}:
				default:
				}
			}
		}()
	}
	run("revoked", revoked, "a")
	run("granted", granted, "a")
	run("kept", kept, "b")
	for name := range live {
		select {
		case <-live[name]:
		case err := <-failed[name]:
			t.Fatalf("%s: %v", name, err)
		case <-ctx.Done():
			t.Fatalf("%s reads nothing", name)
		}
	}
	since := time.Now()
	program.OK(t, nil, "token", "revoke", strings.Split(revoked, "_")[1])
	program.OK(t, nil, "revoke", "alice", "--all")
	for name, want := range map[string]scribev1.Reason{"revoked": scribev1.Reason_REASON_UNAUTHENTICATED, "granted": scribev1.Reason_REASON_DENIED} {
		for range 2 { // its writer and its reader
			select {
			case err := <-failed[name]:
				if got := rpc.ReasonOf(err); got != want {
					t.Errorf("%s: %v with %v, want %v", name, err, got, want)
				}
			case <-ctx.Done():
				t.Fatalf("%s goes on", name)
			}
		}
	}
	t.Logf("all ended %v after the first revocation began", time.Since(since))
	// The others are there, and go on.
	for range 2 {
		select {
		case <-live["kept"]:
		case err := <-failed["kept"]:
			t.Fatalf("a right request was refused: %v", err)
		case <-ctx.Done():
			t.Fatal("what was not revoked has stopped")
		}
	}
	cancel()
}

// TestClosedOverRestarts: a cell stays closed over a restart, and lets in the same tokens.
func TestClosedOverRestarts(t *testing.T) {
	program.OneProcess(t, closedAlone)
	data := filepath.Join(t.TempDir(), "data")
	args := []string{"up", "--data", data, "--listen", "127.0.0.1:0"}
	up := serve(t, nil, args...)
	t.Setenv("SCRIBE_SERVER", up.URL)
	admin := strings.TrimSpace(string(program.OK(t, nil, "token", "issue", "--can", "all:*")))
	t.Setenv("SCRIBE_TOKEN", admin)
	program.OK(t, nil, "category", "create", "a")
	for range 2 {
		up.Kill()
		up = serve(t, nil, args...)
		t.Setenv("SCRIBE_SERVER", up.URL)
		t.Setenv("SCRIBE_TOKEN", "")
		wantCode(t, program.Run(t, nil, "category", "list"), 4, "proves nothing")
		t.Setenv("SCRIBE_TOKEN", admin)
		wantCode(t, program.Run(t, nil, "category", "list"), 0, "a")
	}
	up.Stop()
	// Whoever has the folder is a member.
	t.Setenv("SCRIBE_TOKEN", "")
	wantCode(t, program.Run(t, nil, "inspect", "log", "a", "--data", data), 0)
}

// TestAgentLendsItsRights: what an agent may write, the programs of its host may; and nothing else.
func TestAgentLendsItsRights(t *testing.T) {
	c := startClosed(t)
	program.OK(t, nil, "category", "create", "mine")
	program.OK(t, nil, "category", "create", "other")
	token := c.issue("--can", "write:mine", "--name", "host1")
	spool := filepath.Join(t.TempDir(), "spool")
	run := func(token string) *program.Process {
		return serve(t, []string{"SCRIBE_TOKEN=" + token}, "agent", "--upstream", c.URL, "--listen", "127.0.0.1:0", "--spool", spool)
	}
	agent := run(token)
	server := c.URL
	t.Setenv("SCRIBE_SERVER", agent.URL)
	c.as("", func() {
		program.OK(t, strings.NewReader("one\n"), "produce", "mine")
		wantCode(t, program.Run(t, strings.NewReader("x\n"), "produce", "other"), 4, "may not")
		wantCode(t, program.Run(t, nil, "category", "delete", "mine"), 4, "may not")
	})
	// When its token ends, it keeps what it has acknowledged until it has another one.
	t.Setenv("SCRIBE_SERVER", server)
	program.OK(t, nil, "token", "revoke", strings.Split(token, "_")[1])
	t.Setenv("SCRIBE_SERVER", agent.URL)
	c.as("", func() { program.OK(t, strings.NewReader("two\n"), "produce", "mine", "--ack", "spooled") })
	agent.Stop()
	t.Setenv("SCRIBE_SERVER", server)
	agent = run(c.issue("--can", "write:mine"))
	defer agent.Stop()
	eventually(t, waitLimit, "the backlog is delivered", func() bool {
		return strings.Count(string(program.OK(t, nil, "tail", "mine", "--from", "earliest", "--until-end", "-o", "raw")), "\n") == 2
	})
	sameBytes(t, "what came through the agent", program.OK(t, nil, "tail", "mine", "--from", "earliest", "--until-end", "-o", "raw"), []byte("one\ntwo\n"))
}
