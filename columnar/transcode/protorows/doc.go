// Package protorows reads protobuf messages into rows.
//
// Messages are walked, not decoded: one walk over the wire format records where the required fields have their values. Only these
// are converted into columns.
package protorows
