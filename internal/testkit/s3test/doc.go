// Package s3test runs a real S3-compatible server for tests: versitygw, which keeps the objects in a temporary folder.
//
//	server := s3test.Start(t)
//	client := server.Client()
//	// server.Bucket exists and is empty.
//
// The server is a process of its own. Start builds it from source the first time that it is wanted on a machine (about two
// minutes) and keeps it in the user's cache folder; test binaries that run at the same time build it once. Only tests may
// import this package.
package s3test
