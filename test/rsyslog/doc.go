// Package rsyslog compares the host's agent with rsyslog, which many hosts forward their logs with: the same lines from 200
// producers at the same time, forwarded over TCP, and the CPU time and memory that the forwarding daemon takes for it.
//
//	go test ./test/rsyslog -run '^$' -bench . -benchtime 1x -count 3
//
// It needs rsyslogd (Debian's package rsyslog).
package rsyslog
