// Package otlp is the agent's input for logs of the OpenTelemetry protocol: OTLP/HTTP with protobuf or JSON, plain or gzip, at
// POST /v1/logs, and OTLP/gRPC, on one address. Point an SDK's or a collector's exporter at it.
//
// One log record is one message. Its payload is the body (format body: a text as it is, anything else as JSON), a JSON object of the
// record with its resource and scope (json), or the record as a protobuf LogRecord (protobuf). The event time is the record's, else
// when it was observed. Its category is a template with the fields {service.name}, {service.namespace} and {severity}.
// Attributes carry severity, trace_id, span_id and the names of the record's, scope's and resource's attributes, the first as it is,
// the others after "scope." and "resource.".
//
// The answer comes when the agent holds the records as durably as it can. When it has no room: 503 with Retry-After, or UNAVAILABLE
// with RetryInfo in gRPC, which exporters repeat; what was accepted before may then come twice.
//
// # What is lost
//
//   - Records over max_record are rejected, and so are those that the agent refuses for good: the answer's partial_success counts and
//     explains them, and exporters do not repeat them.
//   - Of a record's attributes the first max_attributes are kept, and values over max_value are cut. Both are counted as truncated.
//   - Metrics and traces are not taken: 404, or UNIMPLEMENTED.
package otlp
