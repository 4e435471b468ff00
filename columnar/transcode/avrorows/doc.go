// Package avrorows reads messages that are Avro data into rows.
//
// Each message is one datum of the writer's schema. A datum is walked, not decoded: one walk over all of it checks its structure
// and records where the required values begin. Only these are converted into columns.
package avrorows
