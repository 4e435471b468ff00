// Package near finds what may have been meant by a name that is not there, for the errors of schemas, of queries and of what categories
// there are.
package near
