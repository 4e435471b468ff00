package rpc

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	scribev1 "scribe/proto/scribe/v1"
)

// bulkClient calls one procedure with large requests or answers. It implements Connect's unary protocol itself, so that bytes go
// from the caller's memory to the socket, and from the socket to their final memory, without a copy in between.
type bulkClient struct {
	client connect.HTTPClient
	url    *url.URL
	err    error // from parsing the URL
	header http.Header
}

func newBulkClient(to endpoint, base, procedure string) *bulkClient {
	u, err := url.Parse(to.base + procedure)
	if err == nil && u.Host == "" {
		err = errors.New("no host")
	}
	if err != nil {
		err = Errorf(scribev1.Reason_REASON_INVALID, "server address %q: %w", base, err)
	}
	return &bulkClient{client: to.unary, url: u, err: err, header: http.Header{
		"Content-Type":             {protoType},
		"Connect-Protocol-Version": {"1"},
		"Accept-Encoding":          {"identity"},
		"User-Agent":               {userAgent},
	}}
}

const (
	protoType = "application/proto"
	jsonType  = "application/json"
	userAgent = "scribe"
)

// callBulk sends a request, and passes the body of the answer and its length to decode. The pieces of the request are not read
// after it returns.
func (c *bulkClient) callBulk(ctx context.Context, b bulkRequest, decode func(io.Reader, int64) error) error {
	if c.err != nil {
		return c.err
	}
	if b.size > MaxMessageBytes {
		return Errorf(scribev1.Reason_REASON_TOO_LARGE, "the request has %d bytes, the limit is %d: send less at once", b.size, MaxMessageBytes)
	}
	body := &sentBody{pieces: b.pieces, size: b.size}
	defer body.detachBody() // last, after the answer's body is closed, and with it a connection that is still being written to
	err := c.roundTrip(ctx, body, decode)
	return clientError(ctx, err, scribev1.Reason_REASON_UNKNOWN_OUTCOME)
}

func (c *bulkClient) roundTrip(ctx context.Context, body *sentBody, decode func(io.Reader, int64) error) error {
	header := c.header.Clone()
	if deadline, ok := ctx.Deadline(); ok {
		if ms := max(time.Until(deadline).Milliseconds(), 1); ms < 1e10 {
			header["Connect-Timeout-Ms"] = []string{strconv.FormatInt(ms, 10)}
		}
	}
	req := (&http.Request{
		Method: http.MethodPost, URL: c.url, Host: c.url.Host, Header: header,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Body: http.NoBody, ContentLength: body.size,
	}).WithContext(ctx)
	if body.size > 0 {
		req.Body = &sendingReader{of: body}
		req.GetBody = func() (io.ReadCloser, error) { return &sendingReader{of: body}, nil }
	}
	res, err := c.client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	at := c.url
	if res.Request != nil { // with several addresses, the one that answered
		at = res.Request.URL
	}
	if res.StatusCode != http.StatusOK {
		return wireError(res, "call "+readableURL(at))
	}
	if t := res.Header.Get("Content-Type"); t != protoType {
		return connect.NewError(connect.CodeUnimplemented, fmt.Errorf("call %s: the answer is of type %q, not %s: is that the address of this service?", readableURL(at), t, protoType))
	}
	if res.ContentLength > MaxMessageBytes {
		return Errorf(scribev1.Reason_REASON_TOO_LARGE, "call %s: the answer has %d bytes, the limit is %d", readableURL(at), res.ContentLength, MaxMessageBytes)
	}
	if err := decode(res.Body, res.ContentLength); err != nil {
		return fmt.Errorf("call %s: read the answer: %w", readableURL(at), err)
	}
	return nil
}

// maxErrorBytes bounds the body of an error. A thousand conflicts in JSON and base64 take about 200 KiB.
const maxErrorBytes = 4 << 20

// wireError decodes an error of Connect's unary protocol.
func wireError(res *http.Response, what string) error {
	var wire struct {
		Code    connect.Code `json:"code"`
		Message string       `json:"message"`
		Details []struct {
			Type  string `json:"type"`
			Value string `json:"value"`
		} `json:"details"`
	}
	if !strings.HasPrefix(res.Header.Get("Content-Type"), jsonType) {
		return statusError(res, what)
	}
	body, err := io.ReadAll(io.LimitReader(res.Body, maxErrorBytes))
	if err != nil || json.Unmarshal(body, &wire) != nil || wire.Code == 0 {
		return statusError(res, what)
	}
	out := connect.NewWireError(wire.Code, errors.New(wire.Message))
	for _, d := range wire.Details {
		value, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(d.Value, "="))
		if err != nil {
			continue // an unreadable detail counts as absent: code and text are known
		}
		if detail, err := connect.NewErrorDetail(&anypb.Any{TypeUrl: "type.googleapis.com/" + d.Type, Value: value}); err == nil {
			out.AddDetail(detail)
		}
	}
	return out
}

// decodeInto returns a function that decodes a small answer.
func decodeInto(m proto.Message) func(io.Reader, int64) error {
	return func(r io.Reader, size int64) error {
		if size < 0 {
			b, err := io.ReadAll(io.LimitReader(r, MaxMessageBytes))
			if err != nil {
				return err
			}
			return unmarshal.Unmarshal(b, m)
		}
		buf := bodies.Get(int(size))
		defer bodies.Put(buf) // protobuf copies the fields that it keeps
		if _, err := io.ReadFull(r, buf.B); err != nil {
			return noEOF(err)
		}
		return unmarshal.Unmarshal(buf.B, m)
	}
}

// sentBody is a request body in the caller's memory. The transport may still read it after a call has returned, because the
// server answered early or the caller gave up; detachBody ends that.
type sentBody struct {
	pieces [][]byte
	size   int64

	mu struct {
		sync.Mutex
		detached bool
	}
}

var errDetached = errors.New("the call has ended")

// detachBody waits for a running read or write, and prevents further ones.
func (s *sentBody) detachBody() {
	s.mu.Lock()
	s.mu.detached = true
	s.mu.Unlock()
}

// sendingReader reads a body from its beginning. The transport asks for another one when it repeats a request of which it has
// sent no byte.
type sendingReader struct {
	of    *sentBody
	piece int
	off   int
}

// Close implements io.Closer.
func (*sendingReader) Close() error { return nil }

// restOfPiece returns the rest of the current piece, nil at the end.
func (r *sendingReader) restOfPiece() []byte {
	for ; r.piece < len(r.of.pieces); r.piece, r.off = r.piece+1, 0 {
		if p := r.of.pieces[r.piece][r.off:]; len(p) > 0 {
			return p
		}
	}
	return nil
}

// Read implements io.Reader.
func (r *sendingReader) Read(b []byte) (int, error) {
	r.of.mu.Lock()
	defer r.of.mu.Unlock()
	if r.of.mu.detached {
		return 0, errDetached
	}
	p := r.restOfPiece()
	if p == nil {
		return 0, io.EOF
	}
	n := copy(b, p)
	r.off += n
	return n, nil
}

// writeAtOnce bounds the bytes of one call of a connection's Write, and thus the time that detachBody waits for a slow peer.
const writeAtOnce = 256 << 10

// writeTo writes up to limit bytes to a connection, without a copy.
func (r *sendingReader) writeTo(c net.Conn, limit int64) (int64, error) {
	var written int64
	for written < limit {
		n, err := r.writeSome(c, limit-written)
		written += int64(n)
		if err != nil || n == 0 {
			return written, err
		}
	}
	return written, nil
}

func (r *sendingReader) writeSome(c net.Conn, limit int64) (int, error) {
	r.of.mu.Lock()
	defer r.of.mu.Unlock()
	if r.of.mu.detached {
		return 0, errDetached
	}
	p := r.restOfPiece()
	n, err := c.Write(p[:min(int64(len(p)), limit, writeAtOnce)])
	r.off += n
	return n, err
}

// bulkConn lets net/http's transport send a body without a copy: its ReadFrom writes the body's pieces to the connection.
type bulkConn struct{ net.Conn }

// ReadFrom implements io.ReaderFrom.
func (c bulkConn) ReadFrom(src io.Reader) (int64, error) {
	if limited, ok := src.(*io.LimitedReader); ok {
		if body, ok := limited.R.(*sendingReader); ok {
			n, err := body.writeTo(c.Conn, limited.N)
			limited.N -= n
			return n, err
		}
	}
	if from, ok := c.Conn.(io.ReaderFrom); ok {
		return from.ReadFrom(src)
	}
	return io.Copy(struct{ io.Writer }{c.Conn}, src)
}
