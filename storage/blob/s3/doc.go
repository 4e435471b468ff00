// Package s3 keeps blobs as objects of a bucket in an S3-compatible store, through minio-go.
//
// # Requests
//
// Put is one PUT, never a multipart upload: blobs are about 10 MB and at most 4 GiB, and an object then appears whole or not at all. The
// body is read from the caller's parts as it is sent; nothing is gathered in memory. A CRC32C of the whole travels in a header for the
// store to check. ReadAt is a ranged GET, read straight into the caller's memory; one that breaks off is continued where it broke.
//
// Every request is repeated a bounded number of times (Config.MaxAttempts), each attempt bounded in time (Config.AttemptTimeout):
// minio-go decides what is worth repeating and waits between attempts.
//
// # Single use of keys
//
// Put asks the store to refuse a key that exists (If-None-Match: *). A lost answer makes that refuse our own object when the
// request is repeated; each Put therefore leaves a random mark in the object's metadata and looks, when it is refused, whether the
// object is its own. A store without conditional writes answers NotImplemented; Put then looks before it writes, which two writers
// of one key at the same time can defeat. Keys are random, so that is no more than a second line of defence. A store that ignores
// the condition silently needs Config.UnconditionalPut to get even that.
//
// # Memory of the parts
//
// net/http may read the body of a request after it has returned an error, and minio-go rewinds the one body for the next attempt.
// Without care the two attempts would share a position and store a mixture, and parts would be read after Put has returned. The
// transport of this package ends an attempt's access to the body when the attempt ends; see attempts.go.
package s3
