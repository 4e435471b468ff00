// Package enforce lets into the services of a process only who may do what they ask. An [Enforcer] stands in front of everything that
// other processes and clients reach:
//
//	server := rpc.NewServer(e.Protect(mux), log) // who asks, and whether the call can be open to them at all
//	services := e.Services(roles)                // what a call names: categories, groups, pointers
//
// Calls inside a process do not pass it: they are those of a member. What is decided is package access's; this package knows what
// each call needs. The table of requirements names every procedure, so that one without a line is refused to all but members.
//
// What one may not see is not named. A category that the caller has no right to is answered as one that does not exist would be:
// with the same refusal. Lists leave it out, and in a closed cell no error suggests names.
package enforce
