// Package discovery finds the instances of a cell's services, given one address, and spreads calls over them.
//
// The address may be that of `scribe up`, which offers all roles, or of any process of a larger cell: each process serves
// ControlService, itself or by asking the control plane. A role that the given address offers is used there, since the client is
// known to reach that address. Other roles are looked up in the membership. An agent (scribed) is used only if the given address
// is one, since the user then wants its spool; agents of other hosts are never used. What it answers for by itself (none, spooled) waits for it
// while it stops or is away: it may hold what goes before. An address that does not serve
// ControlService, such as a proxy that admits only writes, is assumed to offer every role.
//
// Each blob has a home, the instance that rendezvous hashing selects. Calls for its payloads go there, so that caches do not fill
// with copies; a request for several blobs is split. If the home is overloaded and its retry hint is short, the call is repeated
// there once. Otherwise it goes to one of a few fallbacks, chosen by a salted hash of the blob: the overflow of one home is
// spread over all instances, but that of one blob goes to the same instance, which soon caches it too. Other calls go to a
// few instances in turn, fewer to those that are clearly more loaded than the others or have just started ([scribe/internal/base/balance]). An instance that fails is avoided for a while, and so is one whose caller ended a call because of it
// ([ErrBroken]). An expired deadline alone does not count, since the caller may have set it too short.
//
// # Failures
//
// The last known list of instances is used until a newer one arrives. Calls do not wait for the control plane, except for the
// first call, and for one call at a time that refreshes the list. If the given address does not answer, members that it named
// before are asked in its place, so that a client does not depend on that one process.
//
// A call is repeated at another instance if the first one refused it or could not be reached. A call with an unknown outcome is
// repeated only if it changes nothing. A retry budget bounds repeated calls for payloads: each call adds a fraction of a retry,
// and each retry takes one, so that overloaded read proxies do not get a multiple of the requests.
package discovery
