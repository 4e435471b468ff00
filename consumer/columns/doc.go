// Package columns reads categories as Arrow record batches and by SQL. It extends package consumer: programs that read messages alone do not
// link Arrow.
//
// A query yields rows, with no more columns and rows than were asked for:
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
// A consumer or the member of a group that is made with [Where] yields only the messages for which a predicate is true:
//
//	c, err := consumer.New(server, "access", columns.Where("status >= 500"))
//
// [Batches] yields the messages of a consumer or of a member as batches. [InferSchema] and [EnsureSchema] find the schema of a category in its
// messages.
//
// Options of queries stand beside those of package consumer in one list. Start reading at [Query.Batches]; what is made of a payload while it is
// fetched is in evaluation.go, and package consumer/internal/payload is what the two packages know of each other.
package columns
