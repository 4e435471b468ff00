// Package sim runs whole cells, their clients and every fault in one process, under virtual time, from a seed.
//
// A seed draws a plan: the layout of a cell, categories, producers, consumers, groups, and faults. The plan runs in a bubble of
// testing/synctest, in which time passes only when everybody waits, so that hours take seconds. All of it is the real program: processes
// are [scribe/cmd/scribe/app.Start] with HTTP, Pebble and every role; only what lies under it is simulated, through app.Host:
//
//   - network_test.go: a network with latency, bandwidth, loss, one-way cuts and hosts that vanish;
//   - disk_test.go: Pebble's file systems in memory, which lose what was not synced;
//   - store_test.go: a store of blobs that is far away, refuses, loses answers, and lets blobs arrive late;
//   - etcd_test.go: what stands for the etcd of a cell of nodes, which is slow, cut off, and loses answers.
//
// Random numbers of each process follow from the seed as well (app.Host.Random).
//
// In the end everything is healed. The cell must then give every write an outcome and every reader every message within five minutes,
// and is compared with test/history.
//
//	go test ./test/sim -run Seeds -seeds 200
//	go test ./test/sim -run Seeds -first-seed 17 -seeds 1 -minutes 30 -v
//
// Every seed runs in a process of its own: what a killed process leaves running ends with it. docs/testing.md says what the simulator
// finds, how a failure is looked into, and what only real processes show.
package sim
