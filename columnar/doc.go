// Package columnar converts between messages and Apache Arrow: it stores batches in frame bodies and turns row messages into
// batches.
//
// # Batches as frames
//
// A producer sends an Arrow record batch as one frame (record.EncodingArrow). The frame's body is an Arrow IPC stream with one
// batch. [EncodeIPC] writes it; [DecodeIPC] reads it without copying the columns.
//
// The reader does not trust its input. The metadata of an IPC stream is a flatbuffer, and Arrow's own reader follows its offsets
// unchecked. So this package first checks the structure: no cycles, no lengths beyond the available bytes, bounded fields and
// nesting. It then checks every offset and index of the columns. The result of DecodeIPC can be used without a panic. A stream is
// accepted or rejected as a whole.
//
// Supported types: null, boolean, integers, floats, decimals, dates, times, timestamps, durations, intervals, binary and UTF-8
// (also large and fixed size), lists (also large and fixed size), maps, structs, dictionaries of these, and extension types over
// them. Unions, views and run-end encoding are rejected with [ErrUnsupported]. So are compressed bodies (a batcher compresses the
// block that contains the frame), delta dictionaries and streams of the other byte order.
//
// # Messages as batches
//
// [FromFrames] turns the messages of a payload into one batch with fixed columns, see [Schema]. Attributes are not included yet.
//
// # Memory
//
// Batches are reference counted by Arrow's rules: the caller releases what this package returns. All memory is Go memory, so a
// batch that is never released is still garbage collected.
//
// # Queries
//
// The packages below this one turn the messages of a category with a schema into typed columns and evaluate SQL over them.
// docs/columnar.md follows a query through them and says what each package does.
package columnar
