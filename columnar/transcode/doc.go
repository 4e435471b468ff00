// Package transcode turns the messages of a payload into one Arrow record batch with the columns and rows that a query needs.
//
// # Use
//
// A [Transcoder] is the compiled plan of one query or view over one version of a schema. It is immutable and shared by all
// callers that run the query. Each call of [Transcoder.Transcode] takes the frames of one payload and returns one batch:
//
//	t, err := transcode.New(transcode.Spec{Schema: s, Columns: []string{"status", "path", "_index"}, Where: where, EarlyStop: true})
//	...
//	batch, stats, err := t.Transcode(payload, nil)
//	defer batch.Release()
//
// # Packages
//
// Start with [Transcoder.Transcode], which reads the frames in order. The reader for the schema's format (jsonrows, csvrows,
// avrorows, protorows) turns messages into rows; arrowrows reads frames that are already batches. Rows go through package rows,
// which holds the plan, into the buffers of package column. Package jsonscan is the JSON scanner.
//
// # Predicates
//
// A JSON row may be excluded at three stages. First, terms of the top-level AND search for their constant in the bytes of a whole
// frame. Second, terms that compare one column with constants are decided once the column was found, and the rest of a failing
// row is not read ([Spec].EarlyStop). Third, package vector evaluates the remaining terms on the batch.
//
// # Rows that do not fit
//
// No row fails its batch; docs/columnar/transcoding.md has the rules. The result of a query never depends on which columns it or
// another query asked for.
//
// # Bounds
//
// Any byte may be hostile. [Limits] bound rows and batches. Above a batch limit Transcode returns columnar.ErrTooLarge. The batch
// shares no memory with the payload.
package transcode
