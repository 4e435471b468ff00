// Package avrorows reads messages that are Avro data into rows.
//
// Data are walked, not decoded: each message is one datum of the writer's schema. A walk over all of it checks its structure and notes
// where the values that are wanted begin; only these are made into columns.
package avrorows
