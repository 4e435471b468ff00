package app

import (
	"cmp"
	"context"
	"net"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"scribe/internal/base/entropy"
	"scribe/internal/transport/rpc"
	"scribe/storage/blob"
	"scribe/storage/kv"
	"scribe/storage/metalog/journal"
)

// Host is what a process reaches of its machine. Fields that are not set are the real machine; a simulation sets them all.
type Host struct {
	// Name is the machine's, in messages and reports.
	Name string
	// Listen takes a TCP address.
	Listen func(ctx context.Context, network, address string) (net.Listener, error)
	// Dial connects to other processes.
	Dial rpc.Dial
	// FS is the file system of the data folder and of the agent's buffer. What inputs follow is always the real one's.
	FS vfs.FS
	// OpenBlobs opens the store of payloads that a configuration names.
	OpenBlobs func(ctx context.Context, c Config) (blob.Store, error)
	// Replication is what a cell with replicated metadata shares in place of its etcd. A node then has no member of etcd, and does not serve
	// NodeService.
	Replication *Replication
	// Now is the wall clock: what is stored, sent to other processes, or compared with either has its times. Differences of two of its times are
	// measured by the monotonic clock, as those of [time.Now] are.
	Now func() time.Time
	// Random is where the roles draw random numbers, each from a source of its own; nil is the machine's randomness.
	Random *entropy.Source
	// CPUTime returns the CPU time that the process has used.
	CPUTime func() time.Duration

	// descriptors is how many files and connections the process may have open; 0 where connections take none, or nobody knows.
	descriptors int
}

// Replication is what the processes of a cell with replicated metadata share, and how they use it.
type Replication struct {
	// OpenControl opens the store of the control planes, and OpenJournal the journal of the metadata logs. The process closes both.
	OpenControl func() (kv.Store, error)
	OpenJournal func() (journal.Journal, error)
	// SnapshotEvery is how often the replica that leads makes a snapshot; 0 is the configured time.
	SnapshotEvery time.Duration
}

// unixMicro returns the time of the wall clock in Unix microseconds.
func (h Host) unixMicro() int64 { return h.Now().UnixMicro() }

// withDefaults returns the host with the real machine where nothing is set.
func (h Host) withDefaults() Host {
	if h.Listen == nil {
		h.Listen, h.descriptors = new(net.ListenConfig).Listen, maxDescriptors()
	}
	if h.FS == nil {
		h.FS = vfs.Default
	}
	if h.OpenBlobs == nil {
		h.OpenBlobs = OpenBlobs
	}
	if h.Now == nil {
		h.Now = time.Now
	}
	h.Name = cmp.Or(h.Name, hostName())
	return h
}
