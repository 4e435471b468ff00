// Package rsyslog compares the host's agent with rsyslog, with which many hosts forward their logs. 200 concurrent producers of one host
// write the same lines, which are forwarded over TCP; the forwarding daemon's CPU time and memory are measured.
//
//	go test ./test/rsyslog                                         # few lines: each arrives exactly once, whichever daemon forwards
//	go test ./test/rsyslog -run '^$' -bench . -benchtime 3x -timeout 30m # what it costs
//
// The agent forwards to a cell, rsyslogd to a TCP server that only counts; the costs of neither receiver are measured. Where the agent
// has a disk buffer, its syslog input takes responsibility for a line once it is synced; syslog has no acknowledgement for that. The
// library is asked for `none`, unless the setup says spooled. rsyslogd has its queue in memory, in memory with a fallback on disk (as
// the agent has for `none`), or on disk, without syncs. Producers write as fast as they can ("burst"), or each line by itself at its
// time ("trickle"), which is the usual load of hosts.
//
// It needs rsyslogd (Debian's package rsyslog).
package rsyslog
