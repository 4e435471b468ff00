// Package avrotype reads Avro schemas into types that are ready for walking over values of them.
package avrotype
