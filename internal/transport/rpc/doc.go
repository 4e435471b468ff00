// Package rpc connects processes: it has Go interfaces for the services of package scribev1, adapters that serve and call them
// with Connect, HTTP servers and clients with the limits and protocols of this system, and errors with a machine-readable reason.
//
// A role implements the interface of its service with plain methods. The roles that need it hold the same interface, so package
// app hands them either the role itself (one process) or a client from this package (several): the code is the same. For that,
// the streaming calls are written with callbacks: a server calls send, a client's send is the caller's function.
//
// # Memory
//
// Bytes inside a request may be used by the callee only until it returns, since the caller reuses them: a role copies what it
// keeps, and waits for goroutines that read them. A server reads requests into pooled memory, so a role that breaks this rule
// reads another request's bytes. Answers belong to the caller; the payloads of a FetchResponse that came over a transport have
// memory of their own each. An answer may refer to its request.
//
// # Errors
//
// [Errorf], [RetryErrorf] and [InfoError] give an error a reason, which any number of hops keep, beside whatever text they wrap
// around it. A client gives the errors that its transport made a reason, too, attached in the same way: REASON_NO_BACKEND when no
// connection was made, so that nothing was carried out, REASON_UNKNOWN_OUTCOME when a call ended without an answer, and
// REASON_TOO_LARGE for what is over a limit on either end. A stream that broke has REASON_NO_BACKEND, since nothing is lost that
// opening it again does not bring. Errors of a context that ended match it with errors.Is, as those of direct calls do.
//
// # Wire
//
// Unary calls use Connect's unary protocol over HTTP/1.1, streams Connect's streaming protocol over HTTP/2; a server speaks both,
// and gRPC, on one port, without TLS. Calls that carry frames or payloads are served and made by this package's own code around
// the one large field of their message (see bulk_server.go, bulk_client.go), in the same encoding: it halves what a byte costs,
// and brings it within a fifth of a bare HTTP POST. Checksums of large frames are verified while they arrive, and the request is
// marked as checked for the role (see WithChecked). JSON over POST works for every unary call.
//
// A request is refused by its announced length before its body is read; one that announces none is admitted as it is read. A body
// that stops arriving, or an answer that the client does not read, times out after 30 seconds plus one second for each MiB.
package rpc
