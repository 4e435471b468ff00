// Package s3 keeps blobs as objects of a bucket in an S3-compatible store, through minio-go.
//
// # Requests
//
// Put is one PUT, never a multipart upload: blobs are about 10 MB and at most 4 GiB, and an object then appears whole or not at
// all. The body is read from the caller's parts as it is sent; nothing is gathered in memory. A CRC32C of the whole is sent in a
// header for the store to check. ReadAt is a ranged GET, read straight into the caller's memory; an answer that breaks off is
// continued where it broke.
//
// Every request is repeated a bounded number of times (Config.MaxAttempts), each attempt bounded in time (Config.AttemptTimeout):
// minio-go decides which errors to retry and waits between attempts.
//
// # Single use of keys
//
// Put asks the store to refuse an existing key (If-None-Match: *). After a lost answer, the repeated request finds our own object
// and is refused. Each Put therefore stores a random mark in the object's metadata and, when it is refused, checks whether the
// object is its own. A store without conditional writes answers NotImplemented; Put then checks the key before it writes, which
// two concurrent writers of one key can defeat. Keys are random, so this is only a second line of defence. A store that silently
// ignores the condition needs Config.UnconditionalPut for the same check.
//
// # Memory of the parts
//
// net/http may read the body of a request after it has returned an error, and minio-go rewinds the same body for the next
// attempt. Unguarded, the two attempts would share a position and store a mixture, and parts would be read after Put has
// returned. The transport of this package ends an attempt's access to the body when the attempt ends; see attempts.go.
package s3
