// Package inputs is what the agent's sources of messages have in common: programs that do not use the producer library write to
// files, speak syslog or OTLP, or post lines over HTTP, and each of its subpackages takes one of these.
//
// An [Input] runs until its context ends and writes what it reads to the agent, through the producer library. An input that can make its
// source wait waits for the write; one that cannot, such as UDP, uses WriteAsync and counts what found no capacity. Which category a message
// belongs to is a [Template]'s decision; [Names] bounds how many categories a stranger's text can bring about.
//
// Counters are named scribe_inputs_..., with the input's configured name as label; what is dropped carries a reason.
package inputs
