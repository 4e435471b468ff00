// Package moving moves logs between metadata engines: [MoveLog] performs a move from one metalog.Log to another, or finishes one that another
// process began. It knows nothing of placement: its caller decides which log goes where, and has made sure that nobody creates the log anew in the
// engine that it leaves (metalog.Log.ForwardCategory).
//
// A move has two steps. The engine that has the log hands it over in one entry, after which nobody writes to it there; the other engine adopts it in
// one entry. Each step can be repeated by anybody, at any time, and everything that the second one needs is in the first engine. So a process that
// ends between the steps leaves nothing behind but writers that wait, until any process calls MoveLog for the same log and engines.
package moving
