// Package transcode turns the messages of a payload into one Arrow record batch with the columns that a query needs, and the rows that
// it asks for.
//
// # Use
//
// A [Transcoder] is the compiled plan of one query, or view, over one version of a schema. It is immutable, and shared by all who run
// that query; each call of [Transcoder.Transcode] takes the frames of one payload and returns one batch:
//
//	t, err := transcode.New(transcode.Spec{Schema: s, Columns: []string{"status", "path", "_index"}, Where: where, EarlyStop: true})
//	...
//	batch, stats, err := t.Transcode(payload, nil)
//	defer batch.Release()
//
// # The way of a row
//
// The frames are taken in their order. A reader of the schema's format (row messages) or of Arrow (frames that are batches already) makes
// rows of them; the rows go through one set of column buffers, which are handed over to the batch without a copy.
//
// JSON is read by this package's own scanner, package jsonscan: an index of quotes and structure is made with AVX2, or in
// plain Go where there is none, and one walk over each row finds the values of the columns that are needed. What the walk finds are slots: a place in
// the row and a kind. Terms of the predicate that compare one column with constants are decided on slots, as soon as the column was seen; a row that fails is left
// there and then ([Spec].EarlyStop). Before that, terms that stand at the top of an AND look for their constant in the bytes of a whole frame, and only
// rows around a find are walked at all. Only rows that pass are made into columns; without such terms the walk
// itself appends the usual values. What is left of the predicate is evaluated on the
// batch, by package vector.
//
// # Rows that do not fit
//
// No row fails its batch. docs/columnar/transcoding.md has the rules; in short: a row whose structure is damaged has null in every declared column, a value that does not fit
// its column is null, the column _error says what and where, and under schema.OnErrorReject such rows are left out and counted. What a
// query answers never depends on which columns it or another query asked for.
//
// # Bounds
//
// Every byte may be hostile. Rows are at most [Limits].RowBytes long and 128 levels deep, batches at most [Limits].Rows and [Limits].Bytes large; beyond the last two Transcode
// returns columnar.ErrTooLarge. The batch shares no memory with the payload.
package transcode
