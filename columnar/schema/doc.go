// Package schema says how a category's messages become the columns of Arrow record batches.
package schema
