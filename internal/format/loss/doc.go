// Package loss is the format of a loss report: a message by which an agent or a producer tells a category's readers that it had to drop
// messages of it before they were stored. docs/format/loss.md is the byte-level reference.
//
// A report is an ordinary message, so every hop and every reader takes it: the only message of its frame, with the attribute
// [Attribute], whose value is the version, and a small JSON object as its payload. Package consumer turns it into a gap; a reader
// that does not know it sees a message that explains itself.
//
// A report is a frame of its own ([AppendFrame]), so a reader looks for it ([Parse]) only where a frame has one message, and those
// cost it one look at the attributes. What is not a report in every detail is a message like any other: nothing that
// an application wrote is ever hidden.
package loss
