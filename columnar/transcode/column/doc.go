// Package column builds the columns of Arrow record batches one row at a time.
//
// A [Buffer] is one column. Its Append methods take values of the column's own type. The Put functions convert values from their
// form in a message format. If a value does not fit, they append nothing and return why. They accept the same values for every
// format, so a query's result does not depend on the format. [Buffer.MakeArray] makes the Arrow array.
package column
