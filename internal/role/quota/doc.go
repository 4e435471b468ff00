// Package quota enforces the quotas of categories and tenants in a role that serves requests: the write proxy for what is written, the read
// proxy for what is read.
//
// What is written to a category, or read of it, has to pass up to three quotas: the category's, that of the longest prefix of its name, and its
// owner's ([AppendWriteLimits], [AppendReadLimits]). It passes them in this order, the narrowest first, so that what a category has too much of does not count
// for others. What a later quota refuses is taken back from the earlier ones ([Registry.Refund]).
//
// A quota is of the whole cell, and each process has a share of it. The share is at least the quota divided by the number of processes
// that enforce it. A process that has more traffic leases more of what the others do not use (docs/adr/0058): [Registry.CollectDemands] says
// what it wants, a [Reporter] tells the control plane, and the leases that come back raise the shares until they expire.
//
// Decisions are plain state machines that take sizes and times: [Bucket], [Sampler] and the line of those who wait. [Registry] holds them
// under striped locks. Start reading at [Registry.PassLeading].
package quota
