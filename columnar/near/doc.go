// Package near finds what may have been meant by a name that is not there, for the errors of schemas and of queries.
package near
