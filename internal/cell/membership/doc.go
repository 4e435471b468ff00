// Package membership is a process's side of the membership of a cell: Lease keeps the process a member, and View is its copy of
// the members.
//
// # Without a control plane
//
// A View may keep its last list in a file, so that a process that starts while the control plane is unavailable knows which
// members to call (docs/format/catalog.md describes the file). A process that can work without a writer slot gets its Lease by
// Keep, which does not wait for the control plane; a process that needs a slot uses Join, which does.
//
// # Losing a lease
//
// A lease that cannot be renewed is not a reason to stop. While the control plane is unavailable it can't give the slot to
// another member, and when it is back the member gets its slot again; writes must continue meanwhile. When the member alone is
// cut off from the control plane, its slot is kept for another TTL, and then may be given to another member. From then on the
// epochs of logs decide which of the two can write. So a batcher works whether or not the lease is Live, and uses a new slot when
// State.Slot changes.
//
// # Being refused
//
// A cell refuses a process whose id another living process has, or whose store of payloads is not the cell's. That is a reason to stop: Join
// fails, and a lease that runs calls OnRefused and ends.
package membership
