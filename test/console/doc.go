// Package console tests the web console in a real browser: Chromium, driven over its debugging protocol, opens what the real program serves,
// walks through the pages, and is watched for everything that it asks for. With -screenshots it also makes the pictures of the documents:
//
//	go test ./test/console -run TestPages -screenshots
package console
