// Package avrotype parses Avro schemas into types prepared for walking over values.
package avrotype
