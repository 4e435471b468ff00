package columnar

import (
	"errors"
	"fmt"
	"io"
	"unsafe"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"scribe/internal/format/record"
)

// Limits of a stream. EncodeIPC does not write a stream that DecodeIPC would reject.
const (
	// MaxIPC is the maximum length of a stream in bytes: it must fit in a frame.
	MaxIPC = record.MaxFrameLen
	// MaxRows is the maximum number of rows in a batch. A frame holds fewer: record.MaxMessagesPerFrame.
	MaxRows = 4 << 20
	// MaxFields is the maximum number of fields in a schema, including nested ones.
	MaxFields = 4096
	// MaxDepth is the maximum nesting depth of fields.
	MaxDepth = 32
	// maxMetadata is the maximum length of one message's metadata in bytes. It also bounds the bytes that a reader copies out of it.
	maxMetadata = 1 << 20
)

// alignment is the buffer alignment of Arrow's layout, which the columns' element types require.
const alignment = 8

// EncodeIPC appends rec to dst as an Arrow IPC stream: schema, dictionaries, the batch, end of stream. It neither keeps nor
// releases rec. On an error it returns dst unchanged; errors are [ErrUnsupported], [ErrTooLarge], or an error of Arrow's writer.
func EncodeIPC(dst []byte, rec arrow.RecordBatch) (_ []byte, err error) {
	if rec.NumRows() > MaxRows {
		return dst, tooLargeError("%d rows, the limit is %d", rec.NumRows(), MaxRows)
	}
	if err := checkSchema(rec.Schema()); err != nil {
		return dst, err
	}
	w := appendWriter{buf: dst, limit: len(dst) + MaxIPC}
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("columnar: encoding a batch of %d rows: %v", rec.NumRows(), v)
		}
	}()
	iw := ipc.NewWriter(&w, ipc.WithSchema(rec.Schema()))
	if err := errors.Join(iw.Write(rec), iw.Close()); err != nil {
		if errors.Is(err, ErrTooLarge) {
			return dst, tooLargeError("the batch of %d rows takes more than %d bytes: split it", rec.NumRows(), MaxIPC)
		}
		return dst, fmt.Errorf("columnar: encoding a batch of %d rows: %w", rec.NumRows(), err)
	}
	return w.buf, nil
}

// appendWriter is an io.Writer that appends to a buffer up to a maximum length.
type appendWriter struct {
	buf   []byte
	limit int
}

func (w *appendWriter) Write(p []byte) (int, error) {
	if len(p) > w.limit-len(w.buf) {
		return 0, ErrTooLarge
	}
	w.buf = append(w.buf, p...)
	return len(p), nil
}

// DecodeIPC reads a stream of one batch, which must be all of body. The columns point into body, which must not change while the
// batch or anything made from it is in use. DecodeIPC copies body only if it is not 8-byte aligned in memory. The caller releases
// the batch.
//
// Errors are [ErrInvalid], [ErrUnsupported] and [ErrTooLarge]. No body causes a panic or takes more memory than a small multiple
// of its length.
func DecodeIPC(body []byte) (_ arrow.RecordBatch, err error) {
	if len(body) > MaxIPC {
		return nil, tooLargeError("a stream of %d bytes, the limit is %d", len(body), MaxIPC)
	}
	if len(body) > 0 && uintptr(unsafe.Pointer(unsafe.SliceData(body)))%alignment != 0 {
		body = append(make([]byte, 0, len(body)), body...)
	}
	parts, err := splitStream(body)
	if err != nil {
		return nil, err
	}
	// The structure was checked, but types may still contradict buffers in a way that makes Arrow's reader panic.
	defer func() {
		if v := recover(); v != nil {
			err = invalidError("%v", v)
		}
	}()
	messages := &messageReader{parts: parts}
	defer messages.Release()
	// Byte swapping would write to body.
	r, err := ipc.NewReaderFromMessageReader(messages, ipc.WithEnsureNativeEndian(false))
	if err != nil {
		return nil, invalidError("%v", err)
	}
	defer r.Release()
	if !r.Schema().IsNativeEndian() {
		return nil, unsupportedError("the stream has the other byte order")
	}
	if err := checkSchema(r.Schema()); err != nil {
		return nil, err
	}
	if !r.Next() {
		return nil, invalidError("no batch: %v", r.Err())
	}
	rec := r.RecordBatch()
	if err := checkBatch(rec); err != nil {
		return nil, err
	}
	rec.Retain()
	return rec, nil
}

// messageReader passes the messages of a stream to Arrow's reader. The reader takes over its reference and releases it when it is
// itself released.
type messageReader struct {
	parts []ipcMessage
	last  *ipc.Message
}

// Message implements ipc.MessageReader.
func (r *messageReader) Message() (*ipc.Message, error) {
	r.Release()
	if len(r.parts) == 0 {
		return nil, io.EOF
	}
	p := r.parts[0]
	r.parts = r.parts[1:]
	meta, body := memory.NewBufferBytes(p.meta), memory.NewBufferBytes(p.body)
	r.last = ipc.NewMessage(meta, body)
	return r.last, nil
}

// Retain implements ipc.MessageReader. It does nothing: the messages' memory is Go memory, so references are not counted.
func (r *messageReader) Retain() {}

// Release implements ipc.MessageReader.
func (r *messageReader) Release() {
	if r.last != nil {
		r.last.Release()
		r.last = nil
	}
}
