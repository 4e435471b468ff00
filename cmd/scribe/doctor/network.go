package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"time"

	"scribe/cmd/scribe/app"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// checkAddress: can the process listen there?
func (e *examination) checkAddress(ctx context.Context, address app.Need) {
	name := "address " + address.Value
	l, err := e.machine.Host.Listen(ctx, "tcp", address.Value)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		e.addCheck(Failed, name, "stop the process that has it (ss -ltnp), or give another "+address.Flag, "another process listens there")
	case errors.Is(err, syscall.EACCES):
		e.addCheck(Failed, name, "give a port above 1023 with "+address.Flag, "this user may not take that port")
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		e.addCheck(Failed, name, "give an address of this machine, or 0.0.0.0, with "+address.Flag, "this machine does not have that address")
	case err != nil:
		e.addCheck(Failed, name, "give another "+address.Flag, "%v", err)
	default:
		_ = l.Close() // nothing was accepted
		e.addCheck(OK, name, "", "free (%s)", address.Flag)
	}
}

// checkSocket: is the path of a Unix socket free? One that a dead process left behind is replaced at the start.
func (e *examination) checkSocket(ctx context.Context, path string) {
	name := "socket " + path
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		e.addCheck(OK, name, "", "free")
		return
	case err != nil:
		e.addCheck(Failed, name, "give another --socket", "%v", app.WithoutPath(err))
		return
	case info.Mode()&fs.ModeSocket == 0:
		e.addCheck(Failed, name, "move the file, or give another --socket", "a file that is not a socket stands there")
		return
	}
	d := net.Dialer{Timeout: time.Second}
	if c, err := d.DialContext(ctx, "unix", path); err == nil {
		_ = c.Close() // nothing was sent
		e.addCheck(Failed, name, "stop that process, or give another --socket", "another process serves there")
		return
	}
	e.addCheck(OK, name, "", "free: a process that ended left it behind")
}

// remoteClock is the time that another machine told, with the time here when it did.
type remoteClock struct {
	url       string
	told, now time.Time
}

// checkServer: do the processes that this one needs answer, in the same version?
func (e *examination) checkServer(ctx context.Context, server app.Need) {
	for url := range strings.SplitSeq(server.Value, ",") {
		if url = strings.TrimSpace(url); url != "" {
			e.askServer(ctx, server.Flag, url)
		}
	}
}

func (e *examination) askServer(ctx context.Context, flag, url string) {
	name := "server " + url
	ctx, cancel := context.WithTimeout(ctx, serverTimeout)
	defer cancel()
	var options []rpc.TransportOption
	if e.tls != nil {
		options = append(options, rpc.WithTLS(e.tls))
	}
	transport := rpc.NewTransport(e.machine.Host.Dial, options...)
	defer transport.Close()
	status, err := rpc.NewControlClient(transport, url).GetStatus(ctx, &scribev1.GetStatusRequest{})
	switch {
	case err != nil:
		e.addCheck(Failed, name, "start it first, or correct "+flag+"; the process waits for it at the start", "it does not answer: %v", err)
		return
	case status.GetVersion() != e.machine.Version:
		e.addCheck(Warning, name, "upgrade in the order of docs/operations.md", "it answers with version %s, this is %s", status.GetVersion(), e.machine.Version)
	default:
		e.addCheck(OK, name, "", "it answers (%s)", flag)
	}
	if told, err := askTime(ctx, transport.HTTPClient(), url); err == nil {
		e.clocks = append(e.clocks, remoteClock{url, told, e.machine.Host.Now()})
	}
}

// askTime returns the time of another machine's clock, which HTTP tells in whole seconds.
func askTime(ctx context.Context, client *http.Client, url string) (time.Time, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/livez", nil)
	if err != nil {
		return time.Time{}, err
	}
	res, err := client.Do(req)
	if err != nil {
		return time.Time{}, err
	}
	defer res.Body.Close()
	return http.ParseTime(res.Header.Get("Date"))
}

// earliestTime is before any moment at which this program can run.
var earliestTime = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// clockTolerance is how far clocks may be apart: whole seconds are told, and the answer takes a while.
const clockTolerance = 3 * time.Second

// checkClock: is the clock right, as far as other machines tell?
func (e *examination) checkClock() {
	const advice = "run a time service (chrony, systemd-timesyncd) on both machines: retention, leases and the order of messages rest on clocks"
	now := e.machine.Host.Now()
	if now.Before(earliestTime) {
		e.addCheck(Failed, "clock", "set the clock", "it is %s, which can't be", now.UTC().Format(time.RFC3339))
		return
	}
	apart := false
	for _, c := range e.clocks {
		if ahead := c.now.Sub(c.told); ahead.Abs() > clockTolerance {
			apart = true
			e.addCheck(Warning, "clock", advice, "%s", describeSkew(ahead, c.url))
		}
	}
	if !apart {
		e.addCheck(OK, "clock", "", "%s%s", now.UTC().Format(time.RFC3339), agreement(len(e.clocks)))
	}
}

func describeSkew(ahead time.Duration, url string) string {
	if ahead < 0 {
		return fmt.Sprintf("this clock is %v behind that of %s", ahead.Abs().Round(time.Second), url)
	}
	return fmt.Sprintf("this clock is %v ahead of that of %s", ahead.Round(time.Second), url)
}

func agreement(clocks int) string {
	if clocks == 0 {
		return " (no other machine to compare with)"
	}
	return ", as other machines say"
}
