// Package syslog is the agent's input for syslog: RFC 5424 and RFC 3164 over UDP, TCP (RFC 6587, octet counting or a line a message,
// whichever a message begins with) and a Unix datagram socket such as /dev/log.
//
// A message's category is a template with the fields {facility}, {severity}, {host} and {app}. Its payload is the message as it came
// (raw), its text alone (message), or a JSON object of all fields (json). Facility, severity, host, app, procid and msgid are
// attributes, structured data become attributes named id.name, at most 32 of them. The event time is the message's; one of RFC 3164
// has neither year nor zone, so the configured location counts, and the year that brings it closest to now.
//
// # What is lost
//
//   - UDP and Unix datagrams cannot wait: what finds no capacity in the agent is dropped (reason full), and the kernel drops what arrives
//     faster than it is read, which netstat -su shows and receive_buffer helps against. TCP waits: the input stops reading.
//   - Messages over max_message are cut, and counted as truncated.
//   - A message that is neither RFC is kept raw with the attribute "unparsed", or dropped (reason invalid) with `unparsed: drop`.
//   - What the agent refuses for good is dropped (reason refused).
//   - A TCP sender is never told what became of a message: syslog has no answer. A crash of the agent loses what it had read and not
//     yet stored, some milliseconds.
package syslog
