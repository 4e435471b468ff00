// Package doctor looks at a machine and its surroundings before a process of a cell starts there: would the process find what its
// configuration says that it needs, and is that fit for it? It starts nothing and leaves nothing behind.
package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"scribe/cmd/scribe/app"
	"scribe/internal/base/config"
	"scribe/internal/transport/tlsfiles"
	"scribe/storage/blob"
)

// State is the outcome of a check.
type State string

// States.
const (
	OK      State = "ok"
	Warning State = "warning" // the process works, but not well, or not for long
	Failed  State = "failed"  // the process does not start, or can't do its work
)

// Result is one line of a report.
type Result struct {
	// Check is what was looked at, such as "data folder".
	Check string `json:"check"`
	State State  `json:"state"`
	// Found says what there is.
	Found string `json:"found"`
	// Advice says what to do; empty for what is in order.
	Advice string `json:"advice,omitempty"`
}

// Machine is what the checks look at.
type Machine struct {
	// Host is as the process would have it.
	Host app.Host
	// Version of the program.
	Version string
	// Limits are those of the process; nil reads them.
	Limits func() (Limits, error)
	// Space returns the available and the total bytes of the file system of a folder; nil asks it.
	Space func(dir string) (available, total uint64, err error)
}

// Limits are bounds that the system sets to the process.
type Limits struct {
	// Files is how many files and connections it may have open.
	Files uint64
	// Memory is that of the machine or the container in bytes; 0 if it is unknown.
	Memory int64
}

// Examine makes all checks that a configuration asks for. Each is bounded in time.
func Examine(ctx context.Context, c app.Config, m Machine) []Result {
	e := &examination{config: c, machine: m.withDefaults()}
	if !e.checkConfiguration() {
		return e.results
	}
	needs := c.Needs()
	for _, folder := range needs.Folders {
		e.checkFolder(folder)
	}
	for _, address := range needs.Addresses {
		e.checkAddress(ctx, address)
	}
	if needs.Socket != "" {
		e.checkSocket(ctx, needs.Socket)
	}
	if needs.Blobs {
		e.checkBlobs(ctx)
	}
	if e.checkTLS() {
		for _, server := range needs.Servers {
			e.checkServer(ctx, server)
		}
	}
	e.checkClock()
	e.checkLimits(needs.Memory)
	return e.results
}

// Worst returns the worst state of a report.
func Worst(results []Result) State {
	worst := OK
	for _, r := range results {
		if r.State == Failed || r.State == Warning && worst == OK {
			worst = r.State
		}
	}
	return worst
}

// examination is one run of the checks.
type examination struct {
	config  app.Config
	machine Machine
	results []Result
	// tls are the files by which the process proves who it is; nil without any.
	tls *tlsfiles.Files
	// clocks are those of other machines, as far as they told.
	clocks []remoteClock
}

func (e *examination) addCheck(state State, check, advice, found string, args ...any) {
	if len(args) > 0 {
		found = fmt.Sprintf(found, args...)
	}
	if state == OK {
		advice = ""
	}
	e.results = append(e.results, Result{Check: check, State: state, Found: found, Advice: advice})
}

// checkConfiguration returns false if nothing else can be checked.
func (e *examination) checkConfiguration() bool {
	err := e.config.Validate()
	for _, violation := range config.Errors(err) {
		e.addCheck(Failed, "configuration", "correct the setting", "%s", violation)
	}
	if err != nil {
		return false
	}
	roles := make([]string, len(e.config.Roles))
	for i, r := range e.config.Roles {
		roles[i] = string(r)
	}
	e.addCheck(OK, "configuration", "", "valid, for the roles %s", strings.Join(slices.Compact(roles), ", "))
	return true
}

// checkTLS opens the process's certificates, if it has any. It returns false if they can't be used.
func (e *examination) checkTLS() bool {
	if e.config.TLS.IsEmpty() && e.config.TLS.ServerName == "" {
		return true
	}
	files, err := tlsfiles.Open(e.config.TLS, tlsfiles.Deps{Now: e.machine.Host.Now})
	if err != nil {
		e.addCheck(Failed, "TLS", "correct the files that the error names (--tls-...), see docs/security.md", "%v", err)
		return false
	}
	e.tls = files
	e.addCheck(OK, "TLS", "", "certificates can be used")
	return true
}

// blobTimeout bounds all calls of the blob store together, serverTimeout those of one server.
const (
	blobTimeout   = 30 * time.Second
	serverTimeout = 5 * time.Second
)

// openBlobs opens the store that the configuration names.
func (e *examination) openBlobs(ctx context.Context) (blob.Store, error) {
	return e.machine.Host.OpenBlobs(ctx, e.config)
}
