// Package blob is the interface to the object store: immutable blobs under keys that are used once. Batchers put blobs, read
// proxies read ranges of them, retention lists and deletes them. docs/format/blob.md describes their content, and package layout
// writes and reads it.
//
// Engines: package file keeps blobs in a folder, package s3 in a bucket of an S3-compatible store, package memory in memory.
// suite_test.go is the acceptance suite that every engine must pass.
//
// # Keys
//
// A key is a path of parts between slashes, such as "blobs/72h/01890a5d-ac96-774b-bcce-b302099a8057"; [CheckKey] has the rules.
// Every such key is a valid file name below a folder and a valid object name, on every system. No key may be a folder of another
// key: while "a/b" is stored, "a" can't be.
//
// [IdentityKey] is the key of an object that tells the store from others; see [Identify].
//
// # Durability and outcomes
//
// When Put returns nil, the blob survives a crash of the process and of the machine (file, s3). A reader never sees a part of a
// blob. When Put fails with anything but ErrExists, ErrInvalidKey or ErrClosed, the blob may exist nevertheless, as an orphan
// that retention removes; the caller makes a new key and tries again.
package blob
