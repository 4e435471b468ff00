// Package inputs is the common part of the agent's inputs. Programs that do not use the producer library write to files, speak
// syslog or OTLP, or post lines over HTTP; each subpackage accepts one of these.
//
// An [Input] runs until its context ends, and writes its messages to the agent through the producer library. An input that can
// make its source wait waits for the write; one that cannot, such as UDP, uses WriteAsync and counts the messages without
// capacity. A [CategoryTemplate] chooses the category of a message; a [CategoryLimit] bounds how many categories foreign text can
// create.
//
// Counters are named scribe_inputs_..., with the input's configured name as a label; dropped messages carry a reason.
package inputs
