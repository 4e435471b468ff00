// Package router makes one metalog.Log of several engines. Each call goes to the engine where the log is, and follows logs that move
// (docs/adr/0072).
//
// # Where a log is
//
// The engines themselves know it; the router only remembers what they said. Every category begins in one engine, the root. An engine that a
// category leaves keeps a mark that names the next one (metalog.Forward), and never creates a log of it again; an engine that has handed a log
// over names the next one in its state. So a router that has heard of nothing is refused, told where to go on, and goes there: it can neither
// open a log a second time nor read "nothing" of a log that another engine has. An engine that the router does not know yet is an error that
// passes, since the list of engines is watched.
//
// While a log is between two engines it has no writer. Open then fails with an error that passes. Whoever moves logs (package moving) ends that
// within milliseconds, and whoever coordinates the cell finishes what another began.
//
// # What several engines do not promise together
//
// Open of shards in several engines is not atomic: some epochs may be raised when it fails, which only fences. Append is: over several engines it
// is refused as *metalog.SpreadError. Trim is carried out engine by engine, the newest stay first: a router that has not heard of a move may for
// a moment read what is being trimmed in an older stay. Retire, Erase and AdvanceBoundary need all engines.
//
// Each engine has a clock. The watermark of a log is that of its engine, and Look has a horizon for logs that are not known, which the engine that
// creates them keeps. An engine that is away ends no subscription of logs in others: what waits for it is what needs its logs.
package router
