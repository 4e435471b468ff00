// Package member runs a member of an etcd cluster in this process. etcd does the consensus, the membership and the replication; this
// package starts it with the settings that a cell needs, says clearly why it does not start, and stops it within seconds.
//
//	m, err := member.Start(member.Config{Name: "n1", Folder: dir, Members: all, ...})
//	<-m.Ready()              // a majority of the members runs
//	err := <-m.Failed()      // the member ended by itself: end the process
//
// A failed write to its folder ends the process: etcd can't say what is stored then, and logs an error before.
//
// A member whose folder was lost can't begin again under its identity, since it forgot what it voted for: remove it from the cluster, add
// it, and start it with Join and an empty folder.
package member
