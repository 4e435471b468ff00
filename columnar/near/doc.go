// Package near suggests names similar to an unknown one, for errors about schemas, queries and categories.
package near
