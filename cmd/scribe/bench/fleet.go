package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"scribe/internal/base/backoff"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// Fleet is a cell on this machine whose nodes are processes of their own.
type Fleet struct {
	program, dir string
	addresses    []string
	nodes        []*fleetNode
	// alone means one process that keeps its metadata in its folder, without nodes.
	alone bool
}

// fleetNode is a process of a fleet.
type fleetNode struct {
	cmd   *exec.Cmd
	ended chan struct{} // closed when it has ended
}

// StartFleet starts a cell of 1, 3 or 5 nodes, or with 0 a process that is no node, and waits until it serves. program is the binary, and dir
// is for everything that it writes.
func StartFleet(ctx context.Context, program, dir string, nodes int) (*Fleet, error) {
	f := &Fleet{program: program, dir: dir, alone: nodes == 0, nodes: make([]*fleetNode, max(nodes, 1))}
	var err error
	if f.addresses, err = freeAddresses(len(f.nodes)); err != nil {
		return nil, err
	}
	waits := make([]func(context.Context) error, len(f.nodes))
	for i := range f.nodes {
		if waits[i], err = f.launch(i); err != nil {
			return nil, errors.Join(err, f.Close())
		}
	}
	for _, wait := range waits {
		if err := wait(ctx); err != nil {
			return nil, errors.Join(err, f.Close())
		}
	}
	return f, nil
}

// Ports of a node: its own, and those of its etcd.
const nodePorts = 3

// freeAddresses returns addresses, of which the ports that follow are free too. The system does not give ports of this range to who asks for
// any.
func freeAddresses(n int) (addresses []string, err error) {
	for port := 20000 + os.Getpid()*37%11000; len(addresses) < n && port < 32000; port += nodePorts {
		free := true
		for p := port; p < port+nodePorts && free; p++ {
			l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", p)) //nolint:noctx // it returns at once
			if free = err == nil; free {
				_ = l.Close()
			}
		}
		if free {
			addresses = append(addresses, fmt.Sprintf("127.0.0.1:%d", port))
		}
	}
	if len(addresses) < n {
		return nil, errors.New("no free ports between 20000 and 32000")
	}
	return addresses, nil
}

// launch starts a process. wait returns when it is ready.
func (f *Fleet) launch(i int) (wait func(context.Context) error, err error) {
	name := fmt.Sprintf("n%d", i+1)
	args := []string{"up", "--data", filepath.Join(f.dir, name), "--blob-path", filepath.Join(f.dir, "blobs"), "--log-level", "warn"}
	if f.alone {
		args = append(args, "--listen", f.addresses[i])
	} else {
		list := make([]string, len(f.addresses))
		for j, a := range f.addresses {
			list[j] = fmt.Sprintf("n%d=%s", j+1, a)
		}
		args = append(args, "--node", name, "--cluster", strings.Join(list, ","))
	}
	logs, err := os.OpenFile(filepath.Join(f.dir, name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	n := &fleetNode{cmd: exec.Command(f.program, args...), ended: make(chan struct{})} //nolint:noctx // it ends with Kill or Stop
	n.cmd.Stderr = logs
	out, err := n.cmd.StdoutPipe()
	if err == nil {
		err = n.cmd.Start()
	}
	if err != nil {
		return nil, errors.Join(err, logs.Close())
	}
	f.nodes[i] = n
	ready := make(chan struct{})
	go func() {
		defer close(n.ended)
		for lines, told := bufio.NewScanner(out), false; lines.Scan(); {
			if !told && strings.HasPrefix(lines.Text(), "ready ") {
				told = true
				close(ready)
			}
		}
		_ = n.cmd.Wait() // how it ended does not matter: it was told to, or its log says why
		_ = logs.Close()
	}()
	return func(ctx context.Context) error {
		select {
		case <-ready:
			return nil
		case <-n.ended:
			return fmt.Errorf("node %s ended: %s", name, f.lastLine(name))
		case <-ctx.Done():
			return fmt.Errorf("wait for node %s: %w", name, context.Cause(ctx))
		}
	}, nil
}

// lastLine returns the end of a process's log.
func (f *Fleet) lastLine(name string) string {
	b, err := os.ReadFile(filepath.Join(f.dir, name+".log"))
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return lines[len(lines)-1]
}

// URL is that of a node.
func (f *Fleet) URL(i int) string { return "http://" + f.addresses[i] }

// URLs are those of all nodes.
func (f *Fleet) URLs() (urls []string) {
	for i := range f.nodes {
		urls = append(urls, f.URL(i))
	}
	return urls
}

// servers lists all nodes as clients take them, one of them first.
func (f *Fleet) servers(first int) string {
	urls := f.URLs()
	return strings.Join(append(slices.Clone(urls[first:]), urls[:first]...), ",")
}

// Kill ends a node as kill -9 does.
func (f *Fleet) Kill(i int) error {
	err := f.nodes[i].cmd.Process.Kill()
	<-f.nodes[i].ended
	return err
}

// Stop ends a node in order, and waits until it has ended.
func (f *Fleet) Stop(i int) error {
	err := f.nodes[i].cmd.Process.Signal(syscall.SIGTERM)
	if err != nil {
		return err
	}
	limit := time.NewTimer(time.Minute)
	defer limit.Stop()
	select {
	case <-f.nodes[i].ended:
		return nil
	case <-limit.C:
		return fmt.Errorf("node n%d does not end on SIGTERM", i+1)
	}
}

// Restart starts a node again that has ended, and waits until it serves.
func (f *Fleet) Restart(ctx context.Context, i int) error {
	wait, err := f.launch(i)
	if err != nil {
		return err
	}
	return wait(ctx)
}

// Close ends all nodes.
func (f *Fleet) Close() error {
	var errs []error
	for _, n := range f.nodes {
		if n == nil {
			continue
		}
		if err := n.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
			errs = append(errs, err)
		}
		<-n.ended
	}
	return errors.Join(errs...)
}

// awaitSettled waits until one node leads the metadata logs and all others have applied what it has, and returns which leads.
func (f *Fleet) awaitSettled(ctx context.Context) (leader int, err error) {
	for {
		if leader, err = f.findLeader(ctx); err == nil {
			return leader, nil
		}
		if backoff.Sleep(ctx, look) != nil {
			return 0, fmt.Errorf("the nodes do not settle: %w", err)
		}
	}
}

// maxLag is how many entries a replica may be behind while others write.
const maxLag = 100

func (f *Fleet) findLeader(ctx context.Context) (leader int, err error) {
	leader = -1
	for i := range f.nodes {
		asking, cancel := context.WithTimeout(ctx, time.Second)
		res, err := rpc.NewNodeClient(rpc.Default(), f.URL(i)).DescribeNode(asking, &scribev1.DescribeNodeRequest{})
		cancel()
		if err != nil {
			return 0, err
		}
		m := res.GetNode().GetMetalog()
		switch {
		case m.GetLeads():
			leader = i
		case m.GetApplied()+maxLag < m.GetNewest() || m.GetNewest() == 0 && len(f.nodes) > 1:
			return 0, fmt.Errorf("node n%d has applied entry %d of %d", i+1, m.GetApplied(), m.GetNewest())
		}
	}
	if leader < 0 {
		return 0, errors.New("no node leads")
	}
	return leader, nil
}
