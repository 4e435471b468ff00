package doctor

import (
	"net"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"scribe/cmd/scribe/app"
	"scribe/internal/base/units"
)

// withDefaults returns the machine with the real one where nothing is set.
func (m Machine) withDefaults() Machine {
	if m.Host.Listen == nil {
		m.Host.Listen = new(net.ListenConfig).Listen
	}
	if m.Host.OpenBlobs == nil {
		m.Host.OpenBlobs = app.OpenBlobs
	}
	if m.Host.Now == nil {
		m.Host.Now = time.Now
	}
	if m.Limits == nil {
		m.Limits = readLimits
	}
	if m.Space == nil {
		m.Space = func(dir string) (available, total uint64, err error) {
			usage, err := vfs.Default.GetDiskUsage(dir)
			return usage.AvailBytes, usage.TotalBytes, err
		}
	}
	return m
}

// Open files below which a process with many clients and logs runs out of them, or can't work.
const (
	wantedFiles = 16384
	leastFiles  = 1024
)

// checkLimits: does the system let the process have the files, connections and memory that it may take?
func (e *examination) checkLimits(memory int64) {
	limits, err := e.machine.Limits()
	const raise = "raise it: ulimit -n 65536, or LimitNOFILE=65536 in the systemd unit"
	switch {
	case err != nil:
		e.addCheck(Warning, "open files", "look at ulimit -n", "the limit is unknown: %v", err)
	case limits.Files < leastFiles:
		e.addCheck(Failed, "open files", raise, "at most %d files and connections", limits.Files)
	case limits.Files < wantedFiles:
		e.addCheck(Warning, "open files", raise, "at most %d files and connections: too few for many clients", limits.Files)
	default:
		e.addCheck(OK, "open files", "", "at most %d files and connections", limits.Files)
	}
	switch {
	case err != nil || limits.Memory == 0:
	case memory > limits.Memory:
		e.addCheck(Warning, "memory", "lower the limits of the roles (--write-memory, --read-memory, ...), or give the machine more",
			"the process may take %s, the machine has %s", units.About(memory), units.About(limits.Memory))
	default:
		e.addCheck(OK, "memory", "", "the process may take %s of %s", units.About(memory), units.About(limits.Memory))
	}
}
