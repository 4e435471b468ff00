package sqlserver

import (
	"context"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/apache/arrow-go/v18/arrow/flight"
	pb "github.com/apache/arrow-go/v18/arrow/flight/gen/flight"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// upload is the stream of a DoPut whose messages are there already.
type upload struct {
	grpc.ServerStream
	ctx      context.Context //nolint:containedctx // the stream's
	messages []*flight.FlightData
	panics   bool
	blocked  chan struct{} // Recv waits until it is closed; may be nil
	sent     []*flight.PutResult
}

func (u *upload) Context() context.Context { return u.ctx }

func (u *upload) Send(r *flight.PutResult) error {
	u.sent = append(u.sent, r)
	return nil
}

func (u *upload) Recv() (*flight.FlightData, error) {
	if u.panics {
		panic("a bug")
	}
	if u.blocked != nil {
		<-u.blocked
	}
	if len(u.messages) == 0 {
		return nil, io.EOF
	}
	m := u.messages[0]
	u.messages = u.messages[1:]
	return m, nil
}

// uploadOf is the upload of a row of values for a handle.
func uploadOf(t testing.TB, handle []byte, row arrow.RecordBatch) *upload {
	t.Helper()
	collected := &collector{}
	w := flight.NewRecordWriter(collected, ipc.WithSchema(row.Schema()))
	w.SetFlightDescriptor(&flight.FlightDescriptor{Type: flight.DescriptorCMD, Cmd: commandOf(t, handle)})
	if err := w.Write(row); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &upload{ctx: t.Context(), messages: collected.messages}
}

func commandOf(t testing.TB, handle []byte) []byte {
	t.Helper()
	packed, err := anypb.New(&pb.CommandPreparedStatementQuery{PreparedStatementHandle: handle})
	if err != nil {
		t.Fatal(err)
	}
	cmd, err := proto.Marshal(packed)
	if err != nil {
		t.Fatal(err)
	}
	return cmd
}

type collector struct{ messages []*flight.FlightData }

func (c *collector) Send(m *flight.FlightData) error {
	c.messages = append(c.messages, &flight.FlightData{FlightDescriptor: m.FlightDescriptor, DataHeader: m.DataHeader, DataBody: append([]byte(nil), m.DataBody...)})
	return nil
}

// TestHostileHandle: a handle of a map that is null is refused, and a bug while values are received ends only the call.
func TestHostileHandle(t *testing.T) {
	s := serve(t, &runner{}, nil)
	f := &flightSQL{g: s.Server}
	if _, err := f.bindValues(uploadOf(t, []byte(ticketMagic+"null"), batchFrom(0, 1, "x"))); status.Code(err) != codes.InvalidArgument {
		t.Errorf("null: %v", err)
	}
	u := &upload{ctx: t.Context(), panics: true}
	if err := f.bindPrepared(u); status.Code(err) != codes.Internal || len(u.sent) > 0 {
		t.Errorf("a panic: %v", err)
	}
	if !strings.Contains(s.log.String(), "handler panicked") {
		t.Errorf("the log has no panic: %s", s.log)
	}
}

// TestLoad: the server's load is the used part of its queries or of its tails, whichever is more.
func TestLoad(t *testing.T) {
	s := serve(t, &runner{}, func(c *Config) { c.MaxQueries, c.MaxFollows, c.MaxTails = 4, 0, 2 })
	query, tail := &runningQuery{req: &Request{}}, &runningTail{}
	if err := s.admitQuery(query); err != nil || s.Load() != 250 {
		t.Errorf("%v; load %d with one of four queries", err, s.Load())
	}
	if err := s.admitTail(tail); err != nil || s.Load() != 500 {
		t.Errorf("%v; load %d with one of two tails", err, s.Load())
	}
	s.releaseTail(tail)
	s.releaseQuery(query)
	if s.Load() != 0 {
		t.Errorf("load %d at rest", s.Load())
	}
}

// TestBindingIsAdmitted: values are received only from as many clients as queries may run, and not after the end.
func TestBindingIsAdmitted(t *testing.T) {
	s := serve(t, &runner{}, func(c *Config) { c.MaxQueries, c.MaxFollows = 1, 0 })
	f := &flightSQL{g: s.Server}
	handle := []byte(ticketMagic + `{"sql":"SELECT ? FROM t WHERE b = ?"}`)
	running := &runningQuery{req: &Request{}}
	if err := s.admitQuery(running); err != nil {
		t.Fatal(err)
	}
	u := uploadOf(t, handle, batchFrom(0, 1, "x"))
	received := len(u.messages)
	if err := f.bindPrepared(u); status.Code(err) != codes.ResourceExhausted || len(u.messages) != received {
		t.Errorf("beside a query: %v", err)
	}
	s.counted(apiFlight, KindBusy.String(), 1)
	s.releaseQuery(running)
	for range 2 { // each gives its place back
		if err := f.bindPrepared(uploadOf(t, handle, batchFrom(0, 1, "x"))); err != nil {
			t.Errorf("alone: %v", err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	waiting := &upload{ctx: ctx, blocked: make(chan struct{})}
	if err := f.bindPrepared(waiting); status.Code(err) != codes.Canceled {
		t.Errorf("cancelled: %v", err)
	}
	waiting.messages = uploadOf(t, handle, batchFrom(0, 1, "x")).messages
	close(waiting.blocked) // the values come late
	s.serving.Wait()
	if len(waiting.sent) > 0 {
		t.Error("an answer was sent on a stream that was over")
	}
}

// TestDecimalParameter: a decimal keeps its value, whatever scale a client gives it.
func TestDecimalParameter(t *testing.T) {
	for scale, want := range map[int32]string{2: "123456789.01", 0: "12345678901", -3: "12345678901000", -38: "12345678901" + strings.Repeat("0", 38)} {
		b := array.NewDecimal128Builder(memory.DefaultAllocator, &arrow.Decimal128Type{Precision: 38, Scale: scale})
		b.Append(decimal128.FromI64(12345678901))
		if p, ok := parameterOf(b.NewArray()); !ok || p.Text != want {
			t.Errorf("scale %d: got %q, want %q", scale, p.Text, want)
		}
	}
}

// FuzzBindValues: whatever a client uploads is bound or refused.
func FuzzBindValues(f *testing.F) {
	for _, handle := range []string{"null", "{}", `{"sql":"SELECT a FROM t WHERE b = ? AND c = ?"}`, `{"sql":"SELECT a FROM t WHERE b = ? AND c = ?","values":"[]"}`} {
		u := uploadOf(f, []byte(ticketMagic+handle), batchFrom(0, 1, "x"))
		f.Add([]byte(ticketMagic+handle), u.messages[0].DataHeader, u.messages[1].DataHeader, u.messages[1].DataBody)
	}
	b := array.NewDecimal128Builder(memory.DefaultAllocator, &arrow.Decimal128Type{Precision: 38, Scale: -38})
	b.Append(decimal128.FromI64(12345678901))
	a := b.NewArray()
	row := array.NewRecordBatch(arrow.NewSchema([]arrow.Field{{Name: "1", Type: a.DataType()}}, nil), []arrow.Array{a}, 1)
	u := uploadOf(f, nil, row)
	f.Add([]byte(ticketMagic+`{"sql":"SELECT ? FROM t"}`), u.messages[0].DataHeader, u.messages[1].DataHeader, u.messages[1].DataBody)
	g, err := New(DefaultConfig(), Deps{Categories: noCategories{}, Now: func() time.Time { return time.Unix(1e9, 0) }})
	if err != nil {
		f.Fatal(err)
	}
	server := &flightSQL{g: g}
	f.Fuzz(func(t *testing.T, handle, schema, header, body []byte) {
		u := &upload{ctx: t.Context(), messages: []*flight.FlightData{
			{FlightDescriptor: &flight.FlightDescriptor{Type: flight.DescriptorCMD, Cmd: commandOf(t, handle)}, DataHeader: schema},
			{DataHeader: header, DataBody: body},
		}}
		if r, err := server.bindValues(u); (err == nil) != (r != nil) {
			t.Fatalf("neither a result nor an error, or both: %v, %v", r, err)
		}
	})
}
