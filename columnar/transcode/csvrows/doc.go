// Package csvrows reads messages that are lines of CSV into rows.
//
// encoding/csv would end at the first row that it can't read, copies every cell, and does not say where a cell was and whether it was quoted.
package csvrows
