// Package bench measures a cell from outside, and compares it with the limit of the hardware: compression or decompression alone of the same
// bytes in the same run. Ratios can be compared between machines and days; speeds can't.
//
// [Produce], [Consume], [CatchUp] and [EndToEnd] measure one stream of messages. [Categories], [Cost], [Neighbour] and [Outage] measure many
// categories: their memory, the requests to the store, neighbours over their quota, and an unavailable backend. [Far] measures a cell
// whose store is behind a [DelayProxy].
//
// CPU time is that of the whole process, so a measurement against a cell in the same process counts producer, every role and
// consumer. Against a cell elsewhere it counts the client alone, and the report says so.
package bench
