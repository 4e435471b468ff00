// Package rsyslog compares the host's agent with rsyslog, which many hosts forward their logs with: the same lines from 200
// producers of one host at the same time, forwarded over TCP, and the CPU time and memory that the forwarding daemon takes for it.
//
//	go test ./test/rsyslog                                         # few lines: each arrives exactly once, whichever daemon forwards
//	go test ./test/rsyslog -run '^$' -bench . -benchtime 3x -timeout 30m # what it costs
//
// The agent forwards to a cell, rsyslogd to a TCP server that only counts; neither's costs are measured. Where the agent has a disk
// buffer, its syslog input answers for a line when that is synced, which syslog has no word for, and the library is asked for
// `none`, unless the setup says spooled. rsyslogd has its queue in memory, in memory with a disk to fall back on (which is what the
// agent does for `none`), or on disk, without syncs. Producers write as fast as they can ("burst"), or each line by itself and at its
// time ("trickle"), which is what hosts do all day.
//
// It needs rsyslogd (Debian's package rsyslog).
package rsyslog
