// Package lines is the agent's input for lines over HTTP: POST /v1/lines/CATEGORY takes a body in which each line is a message, plain
// or compressed with gzip or zstd.
//
//	curl --data-binary @access.log http://127.0.0.1:7410/v1/lines/access
//
// The answer is JSON, {"accepted": 1000}, when the agent holds all of them. The body is delivered in pieces as it arrives; when one
// can't be, the answer has a status above 399, a text, and how many lines from the beginning were accepted:
//
//	400  the category's name is not valid, the body can't be decompressed, or the agent refuses the messages for good
//	413  a line, or the whole body after decompression, is too large
//	415  the Content-Encoding is not known
//	429  too many requests at the same time; Retry-After says when to try again
//	503  the agent has no capacity; Retry-After says when to try again
//
// Nothing is dropped: what is not accepted is the client's to send again.
package lines
