// Package arrowrows reads frames that are already Arrow batches, column by column. A column of the required type is copied as a
// whole, any other one value by value.
package arrowrows
