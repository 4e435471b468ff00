// Package provision decides how many micro-shards the logical shards of a category have, and for how many of them logs are opened
// before records come. It is a state machine: it does no I/O, reads no clock and takes no lock.
//
// [Planner.Step] takes the traffic that the write proxies report. A [Planner] keeps three views of it:
//
//   - the last seconds, with their trend: the logs of a shard that grows are open before it has grown into them;
//   - the largest of the last quarter of an hour: nothing shrinks because of a lull, and nothing that moves a little moves a plan;
//   - a week by the hour ([hourlyHistory]): what was needed at this hour yesterday or a week ago is open when the hour begins.
//
// What came of it is in [Planner.Changes], until the caller says with [Planner.Stored] that it is stored. docs/adr/0056 has the
// reasons. The replay of a day in replay_test.go shows what it does.
package provision
