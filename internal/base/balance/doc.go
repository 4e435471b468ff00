// Package balance decides how much of its work a caller gives each of several instances of a service: less to one that is clearly more
// loaded or slower than the others, little at first to one that has just started.
//
//	instance.Advertise(now, load, true)        // what the membership says
//	instance.NoteLatency(now, took)            // what the caller sees itself
//	typical := balance.TypicalOf(views)        // of all instances
//	changed := instance.Decide(now, typical, random)
//	instance.Weight()                          // 1, or less
//
// [Instance] is for callers that give each key a home: they weigh a rendezvous hash with the weights, so keys move only where a weight
// changes. [Chooser] is for calls that any instance may take: it chooses among a subset of the instances, which a rendezvous hash gives each
// caller, by weight and by the artificial load that the caller's own choices add and that fades.
//
// # Why it is stable
//
// Every caller decides alone, by reports that are seconds old, so all of them see the same instance as the best. None may rush there:
//
//   - Weights are at most 1. The least loaded instance attracts nobody; the most loaded ones repel, and what leaves one of them is spread over
//     all others by rendezvous hashes.
//   - A weight has steps of the square root of 2, and the band of loads in which it stays is wider than what a step changes. So it does
//     not go to and fro, and load that is only noise moves nothing, but where there is little room left.
//   - A step waits until the one before it can be seen in the reports, and steps back wait for a random time. Only an instance that is about
//     to refuse loses several steps at once.
//   - Loads are compared with those of the other instances. Where all are full or all are slow, nothing moves: there is no better place.
//   - Who has much less than its share, since it is new, fails, or was too busy, says nothing about the others: it is idle for that reason.
//   - An instance that was light for long without being above what is normal gets more on trial, ever more rarely where that is too much:
//     so all callers agree in the end, also about loads that do not follow the share.
//
// # What is not known
//
// An instance that does not advertise its load, since its program is older or it has not spoken yet, is taken to have the typical one. While
// those are most, no load is too high. A caller without decisions for half a minute starts over from the present loads.
//
// Everything here is a plain state machine: times are arguments, relative to any fixed instant, and randomness is injected. Nothing is safe
// for concurrent use.
package balance
