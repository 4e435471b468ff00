// Package inputs is what the agent's sources of messages have in common: programs that do not use the producer library write to
// files, speak syslog or OTLP, or post lines over HTTP, and each of its subpackages takes one of these.
//
// An [Input] runs until its context ends and gives what it reads to a [Sink], which is the agent behind a producer of its own. An
// input that can make its source wait uses Deliver, and goes on when the agent holds the messages; one that cannot, such as UDP,
// uses Offer and counts what found no room. Which category a message belongs to is a [Template]'s decision; [Names] bounds how many
// categories a stranger's text can bring about.
//
// Counters are named scribe_inputs_..., with the input's configured name as label; what is dropped carries a reason.
package inputs
