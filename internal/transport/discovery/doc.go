// Package discovery finds the instances of a cell's services from the one address that a client is given, and spreads calls over
// them.
//
// The address may be that of `scribe up`, which offers everything, or of any process of a larger cell: each of them answers
// ControlService, itself or by asking the control plane. A role that the given address offers itself is used there, since that is
// the address which the client is known to reach; any other is looked up in the membership. Agents (scribed) are used only where
// the given address is one, for its buffer is what the user wants then, and never those of other hosts. An address that does not
// serve ControlService, such as a gateway that lets only writes through, is taken to offer whatever is asked for.
//
// Calls for payloads go to one instance a blob, its home, by rendezvous hashing, so that caches are not filled with copies; a request
// for several blobs is split. When the home is busy and says that it will not be for long, it is asked once more; otherwise one of a
// few fallbacks is asked, which a salted hash of the blob chooses: what overflows from one home is spread over all, but that of one
// blob goes to the same instance, where it is soon in a cache, too. Other calls take turns. An instance that fails is passed over for a
// while, and so is one whose caller ended a call because of it ([ErrBroken]): a deadline alone may be the caller's haste.
//
// # When something is down
//
// What is known is used until something newer is known: calls do not wait for the control plane, but for the first one, and one
// at a time that asks whether the list is still right. When the given address does not answer, members that it named are asked
// in its place, so that a cell outlives the process by which it was found.
//
// A call is repeated at another instance when the first one refused it, or could not be reached. One whose outcome is unknown is
// repeated only when it changes nothing. Repeats of calls for payloads are bounded over all calls: each call adds a part of a repeat to
// a budget, and each repeat takes one, so that a cell whose read proxies are all busy does not get several times the requests.
package discovery
