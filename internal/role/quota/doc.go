// Package quota enforces the quotas of categories in a role that serves requests: the write proxy for what is written, the read proxy for
// what is read.
//
// A quota is of the whole cell, and each process has a share of it. The share is at least the quota divided by the number of processes
// that enforce it. A process that has more traffic leases more of what the others do not use (docs/adr/0058): [Registry.CollectDemands] says
// what it wants, a [Reporter] tells the control plane, and the leases that come back raise the shares until they expire.
//
// Decisions are plain state machines that take sizes and times: [Bucket], [Sampler] and the line of those who wait. [Registry] holds them
// under striped locks. Start reading at [Registry.PassLeading].
package quota
