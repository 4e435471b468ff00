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
// # Packages
//
// Start with [Transcoder.Transcode]: it takes the frames in their order. A reader of the schema's format (jsonrows, csvrows, avrorows,
// protorows) makes rows of messages, arrowrows of frames that are batches already. Rows go through package rows, which holds the plan,
// into the buffers of package column. jsonscan is the scanner of JSON.
//
// # Predicates
//
// A row of JSON may be ruled out three times. Terms at the top of an AND look for their constant in the bytes of a whole frame. Terms that
// compare one column with constants are decided as soon as the column was found, and the rest of a row that fails is not read
// ([Spec].EarlyStop). What is left is evaluated on the batch, by package vector.
//
// # Rows that do not fit
//
// No row fails its batch; docs/columnar/transcoding.md has the rules. What a query answers never depends on which columns it or another
// query asked for.
//
// # Bounds
//
// Every byte may be hostile. [Limits] bound rows and batches; beyond those of a batch Transcode returns columnar.ErrTooLarge. The batch
// shares no memory with the payload.
package transcode
