// Package budget bounds the bytes that a role holds for others. A request asks for its bytes before they are read or copied, and is
// refused at once when they do not fit: nothing waits. A refusal says when to try again, from how fast bytes were given back
// lately, so that callers come back when there is likely to be room, neither sooner nor much later.
//
// The count is one atomic number, so that requests do not wait for each other; the speed is measured beside it, by whoever comes by
// when it is due.
package budget
