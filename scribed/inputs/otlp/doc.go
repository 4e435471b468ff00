// Package otlp is the agent's input for logs of the OpenTelemetry protocol: OTLP/HTTP with protobuf or JSON, plain or gzip, at
// POST /v1/logs, and OTLP/gRPC, on one address. Point an SDK's or a collector's exporter at it.
//
// One log record is one message. Its payload is the body (format body: a text as it is, anything else as JSON), a JSON object of
// the record with its resource and scope (json), or the record as a protobuf LogRecord (protobuf). The event time is the record's
// time, else its observed time. The category is a template with the fields {service.name}, {service.namespace} and {severity}.
// The attributes are severity, trace_id, span_id, event_name, scope.name, and those of the record, the scope and the resource:
// the record's under their names, the others after "scope." and "resource.". Of several with one name, the first in that order
// counts.
//
// An export is answered when the agent holds its records as durably as it can. Without capacity, the answer is 503 with
// Retry-After, or UNAVAILABLE with RetryInfo in gRPC, and exporters retry; records that were accepted before may then be stored
// twice. With more than max_requests concurrent requests, it is 429 with Retry-After, or UNAVAILABLE with RetryInfo. A request
// gets its slot before its body is read, so that max_requests times max_request bounds the buffered bytes, and loses it when its
// body makes no progress for patience.
//
// # What is lost
//
//   - Records over max_record are rejected, and so are records that the agent refuses for good: the answer's partial_success
//     counts and explains them, and exporters do not retry them.
//   - The first max_attributes attributes of a message are kept, and values over max_value are cut. In a value that becomes JSON,
//     values nested deeper than 32 levels become null, and the first of several with one key is kept. Such messages are counted
//     as truncated.
//   - Requests that would fail again are refused and counted: over max_request or over 1,048,576 records, attributes and values
//     together (413, RESOURCE_EXHAUSTED or INVALID_ARGUMENT), malformed (400, INVALID_ARGUMENT), of another content type or
//     encoding than gzip (415, UNIMPLEMENTED).
//   - Metrics and traces are not accepted: 404, or UNIMPLEMENTED.
package otlp
