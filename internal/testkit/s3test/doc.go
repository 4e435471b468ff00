// Package s3test runs a real S3-compatible server for tests: versitygw, which stores the objects in a temporary folder.
//
//	server := s3test.Start(t)
//	client := server.Client()
//	// server.Bucket exists and is empty.
//
// The server is a separate process. The first Start on a machine builds it from source (about two minutes) and keeps the executable in
// the user's cache folder; concurrent test binaries build it only once. Only tests may import this package.
package s3test
