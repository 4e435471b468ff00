// Package lines is the agent's input for lines over HTTP: POST /v1/lines/CATEGORY takes a body in which each line is a message, plain
// or compressed with gzip or zstd.
//
//	curl --data-binary @access.log http://127.0.0.1:7410/v1/lines/access
//
// The answer is JSON, {"accepted": 1000}, once the agent holds all lines. The body is delivered in pieces as it arrives. If one
// cannot be delivered, the answer has a status above 399, a text, and the number of lines, from the beginning, that were
// accepted:
//
//	400  the category's name is not valid, the body can't be decompressed, or the agent refuses the messages for good
//	413  a line, or the whole body after decompression, is too large
//	415  the Content-Encoding is not known
//	429  too many requests at the same time; Retry-After says when to try again
//	503  the agent has no capacity; Retry-After says when to try again
//
// Nothing is dropped: the client sends again the lines that were not accepted.
package lines
