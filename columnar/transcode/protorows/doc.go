// Package protorows reads protobuf messages into rows.
//
// Messages are walked, not decoded: one walk over the wire format of each notes where the fields that are wanted have their values; only
// these are made into columns.
package protorows
