// Package loss is the format of a loss report: a message by which an agent or a producer tells a category's readers that it
// dropped messages of the category before they were stored. docs/format/loss.md is the byte-level reference.
//
// A report is an ordinary message that every hop and every reader accepts: the only message of its frame, with the attribute
// [Attribute], whose value is the version, and a small JSON object as its payload. Package consumer turns it into a gap; a reader
// that does not know the format gets a self-explanatory message.
//
// A report is a frame of its own ([AppendFrame]), so a reader looks for it ([Parse]) only in frames with one message, at the cost
// of one look at the attributes. A message that differs from a report in any detail is an ordinary message: no message of an
// application is ever hidden.
package loss
