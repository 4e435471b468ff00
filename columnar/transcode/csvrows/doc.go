// Package csvrows reads messages that are lines of CSV into rows.
//
// It does not use encoding/csv, which would stop at the first unreadable row, copies every cell, and does not report a cell's
// position or whether it was quoted.
package csvrows
