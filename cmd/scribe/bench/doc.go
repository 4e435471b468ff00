// Package bench measures a cell as its users would see it, beside the limit that the hardware sets: what compression alone, or
// decompression alone, of the same bytes costs in the same run. Ratios can be compared between machines and days; speeds can't.
//
// [Produce], [Consume], [CatchUp] and [EndToEnd] are about one stream of messages; [Categories], [Cost], [Neighbour] and [Outage] about what a team
// meets with many: memory for categories, the store's bill, neighbours beyond their quota, and a backend that is away.
//
// CPU time is that of the whole process, so a measurement against a cell in the same process counts producer, every role and
// consumer. Against a cell elsewhere it counts the client alone, and the report says so.
package bench
