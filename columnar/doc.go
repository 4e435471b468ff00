// Package columnar is where messages meet Apache Arrow: batches as bodies of frames, and row messages as batches.
//
// # Batches as frames
//
// A producer that has an Arrow record batch sends it as one frame (record.EncodingArrow). The frame's body is an Arrow IPC
// stream with one batch: [EncodeIPC] writes it, [DecodeIPC] reads it without copying the columns. The reader trusts nothing. The
// metadata of an IPC stream is a flatbuffer, which Arrow's own reader follows wherever it points; so its structure is checked
// first (no cycles, no lengths beyond the bytes at hand, a bound on fields and nesting), and every offset and index of the
// columns afterwards, so that what DecodeIPC returns can be used without a panic. A stream is refused as a whole or accepted.
//
// Types that are accepted: null, boolean, integers, floats, decimals, dates, times, timestamps, durations, intervals, binary and
// UTF-8 (also large and fixed size), lists (also large and fixed size), maps, structs, dictionaries of these, and extension types
// over them. Unions, views and run-end encoding are refused with [ErrUnsupported], as are compressed bodies (a batcher compresses
// the block that a frame is in), delta dictionaries and streams of the other byte order.
//
// # Messages as batches
//
// [FromFrames] turns the messages of a payload into one batch with fixed columns, see [Schema]. Attributes are not among them
// so far.
//
// # Memory
//
// Batches are reference counted by the rules of Arrow: what this package returns the caller releases. All memory is Go's, so
// a batch that is never released is garbage collected all the same.
//
// # Queries
//
// The packages below this one turn the messages of a category with a schema into typed columns, and evaluate SQL over them. docs/columnar.md
// has the way of a query, and says which package does what.
package columnar
