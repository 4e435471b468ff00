// Package discovery finds the instances of a cell's services from the one address that a client is given, and spreads calls over
// them.
//
// The address may be that of `scribe up`, which offers everything, or of any process of a larger cell: each of them answers
// ControlService, itself or by asking the control plane. A role that the given address offers itself is used there, since that is
// the address which the client is known to reach; any other is looked up in the membership. Calls for payloads prefer one instance
// a blob, by rendezvous hashing, so that caches are not filled with copies; an instance that fails is passed over for a while.
package discovery
