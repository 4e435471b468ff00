// Package otlp is the agent's input for logs of the OpenTelemetry protocol: OTLP/HTTP with protobuf or JSON, plain or gzip, at
// POST /v1/logs, and OTLP/gRPC, on one address. Point an SDK's or a collector's exporter at it.
//
// One log record is one message. Its payload is the body (format body: a text as it is, anything else as JSON), a JSON object of the
// record with its resource and scope (json), or the record as a protobuf LogRecord (protobuf). The event time is the record's, else
// when it was observed. Its category is a template with the fields {service.name}, {service.namespace} and {severity}.
// Attributes carry severity, trace_id, span_id, event_name, scope.name, and the record's, scope's and resource's attributes, the
// first under their names, the others after "scope." and "resource.". Of several with one name the first counts, in that order.
//
// The answer comes when the agent holds the records as durably as it can. When it has no capacity: 503 with Retry-After, or UNAVAILABLE
// with RetryInfo in gRPC, which exporters repeat; what was accepted before may then come twice. More than max_requests at the same
// time: 429 with Retry-After, or UNAVAILABLE with RetryInfo. A place is taken before a body is read, so that max_requests times
// max_request bounds the bytes that are held, and given back when a body stands still for patience.
//
// # What is lost
//
//   - Records over max_record are rejected, and so are those that the agent refuses for good: the answer's partial_success counts and
//     explains them, and exporters do not repeat them.
//   - Of a message's attributes the first max_attributes are kept, and values over max_value are cut. A value that becomes JSON has
//     null for what is nested deeper than 32 levels, and the first of several with one key. A message with any of it is counted as
//     truncated.
//   - Requests that no repetition would help are refused and counted: over max_request or over 1,048,576 records, attributes and
//     values together (413, RESOURCE_EXHAUSTED or INVALID_ARGUMENT), malformed (400, INVALID_ARGUMENT), of another content type or
//     encoding than gzip (415, UNIMPLEMENTED).
//   - Metrics and traces are not taken: 404, or UNIMPLEMENTED.
package otlp
