// Package column grows the columns of Arrow record batches, a row at a time.
//
// A [Buffer] is one column. Its Append methods take values in the column's own type. The Put functions take values as formats write them
// and convert them: they return why a value does not fit, and have then appended nothing. They accept the same values of every format, so
// that a query does not see which one it was. [Buffer.MakeArray] makes the Arrow array.
package column
