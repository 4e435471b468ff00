// Package syslog is the agent's input for syslog: RFC 5424 and RFC 3164 over UDP, TCP (RFC 6587, with octet counting or one
// message a line, as each message begins) and a Unix datagram socket such as /dev/log.
//
// A message's category is a template with the fields {facility}, {severity}, {host} and {app}. Its payload is the message as it
// came (raw), its text alone (message), or a JSON object of all fields (json). Facility, severity, host, app, procid and msgid
// become attributes; structured data become attributes named id.name, at most 32 of them. The event time is the message's; a time
// of RFC 3164 has neither year nor zone, so it is in the configured location, in the year that brings it closest to now.
//
// # What is lost
//
//   - UDP and Unix datagrams cannot wait: messages without capacity in the agent are dropped (reason full), and the kernel drops
//     datagrams that arrive faster than they are read, which netstat -su shows and receive_buffer reduces. TCP waits: the input
//     stops reading.
//   - Messages over max_message are cut, and counted as truncated.
//   - A message that matches neither RFC is kept raw with the attribute "unparsed", or dropped (reason invalid) with `unparsed:
//     drop`.
//   - Messages that the agent refuses for good are dropped (reason refused).
//   - A TCP sender gets no acknowledgement: syslog has none. A crash of the agent loses the messages that it had read and not yet
//     stored, some milliseconds.
package syslog
