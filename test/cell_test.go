package test

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"testing"

	"scribe/cmd/scribe/app"
	"scribe/internal/testkit/s3test"
	"scribe/internal/transport/rpc"
	"scribe/test/program"
)

// cell is a running system.
type cell struct {
	// write and read are the addresses that clients are given for each.
	write, read string
	// restart ends every process of the cell in an orderly way and starts it again on the same data. Addresses may change.
	restart func(t *testing.T, c *cell)
}

// kinds are the ways to put the system together; the suite runs over each.
var kinds = []struct {
	name  string
	start func(t *testing.T) *cell
}{
	{"direct calls", func(t *testing.T) *cell { return inProcess(t, app.Direct) }},
	{"in-memory HTTP", func(t *testing.T) *cell { return inProcess(t, app.InMemory) }},
	{"processes on files", func(t *testing.T) *cell {
		return processes(t, []string{"SCRIBE_BLOBS=file", "SCRIBE_BLOB_PATH=" + filepath.Join(t.TempDir(), "blobs")})
	}},
	{"processes on S3", func(t *testing.T) *cell { return processes(t, s3Environment(t)) }},
	{"three nodes", threeNodes},
}

// eachKind runs a test over every kind of cell.
func eachKind(t *testing.T, test func(t *testing.T, c *cell)) {
	for _, kind := range kinds {
		t.Run(kind.name, func(t *testing.T) { test(t, kind.start(t)) })
	}
}

func s3Environment(t *testing.T) []string {
	s := s3test.Start(t)
	return []string{
		"SCRIBE_BLOBS=s3", "SCRIBE_S3_ENDPOINT=http://" + s.Endpoint, "SCRIBE_S3_BUCKET=" + s.Bucket, "SCRIBE_S3_REGION=" + s.Region,
		"SCRIBE_S3_ACCESS_KEY=" + s.AccessKey, "SCRIBE_S3_SECRET_KEY=" + s.SecretKey, "SCRIBE_FLUSH_FLOOR=0s",
	}
}

// inProcess runs every role in the test's own process.
func inProcess(t *testing.T, wiring app.Wiring) *cell {
	cfg := app.DefaultConfig()
	cfg.Data, cfg.Listen, cfg.TLS = filepath.Join(t.TempDir(), "data"), "127.0.0.1:0", program.MemberConfig()
	start := func(t *testing.T) *app.App {
		a, err := app.Start(t.Context(), cfg, app.Options{Logger: slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn})), Wiring: wiring})
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	stop := func(t *testing.T, a *app.App) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), waitLimit)
		defer cancel()
		if err := a.Stop(ctx); err != nil {
			t.Errorf("stop: %v", err)
		}
	}
	a := start(t)
	program.CloseCell(t, rpc.Default(), a.URL())
	t.Cleanup(func() { stop(t, a) })
	return &cell{write: a.URL(), read: a.URL(), restart: func(t *testing.T, c *cell) {
		stop(t, a)
		a = start(t)
		c.write, c.read = a.URL(), a.URL()
	}}
}

// threeNodes runs a cell of three nodes with every role. Clients write through the first and read through the second.
func threeNodes(t *testing.T) *cell {
	dir := t.TempDir()
	c, up := &cell{}, (*program.Process)(nil)
	start := func(t *testing.T) {
		up = program.ServeNodes(t, 3, nil, "up", "--data", filepath.Join(dir, "data"))
		c.write, c.read = up.URL, up.Nodes()[1].URL
	}
	c.restart = func(t *testing.T, _ *cell) {
		up.Stop()
		start(t)
	}
	start(t)
	return c
}

// processes runs an agent, two write proxies, three batchers, two read streams, two read proxies, two sequencers and one control plane with the
// metadata logs, each a process of its own. Clients write through the agent and read through a write proxy, which has to tell
// them where the others are.
func processes(t *testing.T, storage []string) *cell {
	dir := t.TempDir()
	var running []*program.Process
	start := func(t *testing.T, c *cell) {
		running = nil
		run := func(env []string, args ...string) *program.Process {
			p := serve(t, env, args...)
			running = append(running, p)
			return p
		}
		control := run(nil, "serve", "--roles", "controlplane,metalog", "--data", filepath.Join(dir, "control"), "--listen", "127.0.0.1:0")
		env := append([]string{"SCRIBE_CONTROL=" + control.URL, "SCRIBE_METALOG=" + control.URL, "SCRIBE_LISTEN=127.0.0.1:0"}, storage...)
		proxies := make([]*program.Process, 0, 2)
		for role, n := range map[string]int{"batcher": 3, "readstream": 2, "readproxy": 2, "writeproxy": 2, "sequencer": 2} {
			for i := range n {
				id := fmt.Sprintf("%s-%d", role, i+1)
				p := run(env, "serve", "--roles", role, "--id", id, "--data", filepath.Join(dir, id), "--auto-create")
				if role == "writeproxy" {
					proxies = append(proxies, p)
				}
			}
		}
		agent := run(nil, "agent", "--upstream", proxies[0].URL, "--listen", "127.0.0.1:0")
		c.write, c.read = agent.URL, proxies[1].URL
	}
	c := &cell{}
	c.restart = func(t *testing.T, c *cell) {
		for _, p := range slices.Backward(running) {
			p.Stop()
		}
		start(t, c)
	}
	start(t, c)
	return c
}
