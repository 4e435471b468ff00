// Package membership is a process's part in the membership of a cell: Lease keeps the process's own place in it, and View is
// its copy of who else is there.
//
// # Without a control plane
//
// A View may keep its last list in a file, so that a process that starts while the control plane is unavailable knows whom to call
// (docs/format/catalog.md describes the file). A process that can do its work without a writer slot gets its Lease by Keep, which does
// not wait for the control plane; one that needs the slot by Join, which does.
//
// # Losing a lease
//
// A lease that cannot be renewed is not a reason to stop. While the control plane is unavailable nobody gives the slot to another, and
// after it comes back the member finds its slot again; writes must go on meanwhile. When the member was cut off from a control
// plane that lives, its slot is kept for it for another TTL, and then may be given to another; from then on the epochs of logs
// decide which of the two writes. So a batcher does its work whether or not the lease is Live, and takes up a new slot when
// State.Slot changes.
package membership
