// Package member runs a member of an etcd cluster in this process. etcd does the consensus, the membership and the replication; this package
// only starts it as the cell needs it, and says clearly why it does not start.
package member
