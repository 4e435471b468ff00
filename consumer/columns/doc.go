// Package columns reads categories as Arrow record batches and with SQL. It extends package consumer; programs that only read
// messages do not link Arrow.
//
// A query yields rows, with only the requested columns:
//
//	q, err := columns.NewQuery(ctx, "http://127.0.0.1:7420", "SELECT client_ip, path FROM access WHERE status >= 500")
//	if err != nil {
//		return err // a *sql.Error shows the place in the text
//	}
//	defer q.Close()
//	for batch, err := range q.Batches(ctx) {
//		...
//	}
//
// A consumer or group member with [Where] yields only the messages for which a predicate is true:
//
//	c, err := consumer.New(server, "access", columns.Where("status >= 500"))
//
// and one with [Keys] only those of some keys. Both read only the logical shards in which there can be such messages.
//
// [Batches] yields the messages of a consumer or group member as batches. [InferSchema] and [EnsureSchema] infer the schema of a
// category from its messages.
//
// Options of queries are passed in one list with those of package consumer. Start reading at [Query.Batches]. evaluation.go
// evaluates payloads while they are fetched; consumer/internal/payload is the contract between the two packages.
package columns
