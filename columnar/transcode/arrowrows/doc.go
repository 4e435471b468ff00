// Package arrowrows reads frames that are Arrow batches already, by columns: one that has the type it should have is copied as it
// is, every other value by value.
package arrowrows
