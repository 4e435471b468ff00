package sqlserver

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"strconv"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/flight"
	pb "github.com/apache/arrow-go/v18/arrow/flight/gen/flight"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"scribe/columnar"
	"scribe/columnar/sql"
	"scribe/columnar/value"
)

// parameterSchema describes the parameters of a prepared statement. A text takes the type that its place in the query requires; values may have
// other types.
func parameterSchema(n int) *arrow.Schema {
	fields := make([]arrow.Field, n)
	for i := range fields {
		fields[i] = arrow.Field{Name: "$" + strconv.Itoa(i+1), Type: arrow.BinaryTypes.String, Nullable: true}
	}
	return arrow.NewSchema(fields, nil)
}

// bindPrepared answers DoPut with values for a prepared statement: with another handle, whose query has the values. The server stores nothing.
// A client has bodyTimeout to send them, and is admitted as one with a query is, since what it sends takes memory. Only bindPrepared sends: the
// goroutine that receives may outlive the stream.
func (f *flightSQL) bindPrepared(s flight.FlightService_DoPutServer) error {
	q := &runningQuery{api: apiFlight, client: clientAddress(s.Context()), req: &Request{}, quiet: true}
	f.g.startQuery(s.Context(), q)
	if err := f.g.admitQuery(q); err != nil {
		q.endQuery(err)
		return rpcError(err)
	}
	defer q.endQuery(nil)
	type outcome struct {
		result *flight.PutResult
		err    error
	}
	done := make(chan outcome, 1)
	f.g.serving.Go(func() { // ends with the stream
		var o outcome
		defer func() {
			if v := recover(); v != nil {
				o.err = f.g.panicError(FlightPath+"DoPut", v)
			}
			done <- o
		}()
		o.result, o.err = f.bindValues(s)
	})
	late := time.NewTimer(bodyTimeout)
	defer late.Stop()
	select {
	case o := <-done:
		if o.err != nil {
			return o.err
		}
		return s.Send(o.result)
	case <-q.ctx.Done():
		return rpcError(q.endReason())
	case <-late.C:
		return status.Errorf(codes.DeadlineExceeded, "the values of the parameters did not come within %v", bodyTimeout)
	}
}

// bindValues receives the values, and returns the handle that has them.
func (f *flightSQL) bindValues(s flight.FlightService_DoPutServer) (*flight.PutResult, error) {
	first, err := s.Recv()
	if err != nil {
		return nil, err
	}
	var (
		packed anypb.Any
		cmd    pb.CommandPreparedStatementQuery
	)
	if proto.Unmarshal(first.GetFlightDescriptor().GetCmd(), &packed) != nil || packed.UnmarshalTo(&cmd) != nil {
		return nil, status.Error(codes.Unimplemented, "nothing can be written: write with the producer")
	}
	batch, err := receiveBatch(s, first)
	if err != nil {
		return nil, err
	}
	defer batch.Release()
	values, err := parametersOf(batch)
	if err != nil {
		return nil, rpcError(err)
	}
	handle, err := bindHandle(cmd.GetPreparedStatementHandle(), values, f.g.now())
	if err != nil {
		return nil, rpcError(err)
	}
	result, err := proto.Marshal(&pb.DoPutPreparedStatementResult{PreparedStatementHandle: handle})
	if err != nil {
		return nil, err
	}
	return &flight.PutResult{AppMetadata: result}, nil
}

// bindHandle returns a handle with values for its query's parameters. The handle is untrusted.
func bindHandle(handle []byte, values []sql.Parameter, now time.Time) ([]byte, error) {
	t, _, err := decodeTicket(handle, now)
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(values)
	if err != nil {
		return nil, err
	}
	t[ticketValues] = string(text)
	if _, err := t.toRequest(now); err != nil {
		return nil, err
	}
	bound := t.encodeTicket()
	if len(bound) > maxBody {
		return nil, errorf(KindTooLarge, "the query and the values of its parameters take %d bytes, at most %d are allowed", len(bound), maxBody)
	}
	return bound, nil
}

// receiveBatch receives the one batch of an upload of at most maxFlightRequest bytes. It is checked as a stream of a producer is, which may be
// as hostile. The caller releases it.
func receiveBatch(s flight.FlightService_DoPutServer, first *flight.FlightData) (arrow.RecordBatch, error) {
	var stream []byte
	for data := first; ; {
		if len(stream)+len(data.GetDataHeader())+len(data.GetDataBody()) > maxFlightRequest {
			return nil, status.Errorf(codes.InvalidArgument, "the values of the parameters take more than %d bytes", maxFlightRequest)
		}
		if header := data.GetDataHeader(); len(header) > 0 {
			padded := (len(header) + 7) / 8 * 8
			stream = binary.LittleEndian.AppendUint32(stream, 0xFFFFFFFF)
			stream = binary.LittleEndian.AppendUint32(stream, uint32(padded))
			stream = append(append(stream, header...), make([]byte, padded-len(header))...)
			stream = append(stream, data.GetDataBody()...)
		}
		var err error
		if data, err = s.Recv(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, err
		}
	}
	stream = append(stream, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0, 0, 0) // the end of a stream
	batch, err := columnar.DecodeIPC(stream)
	if err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "the values of the parameters: %v", err)
	}
	return batch, nil
}

// parametersOf returns the values in the one row of a batch.
func parametersOf(batch arrow.RecordBatch) ([]sql.Parameter, error) {
	if batch.NumRows() != 1 {
		return nil, errorf(KindInvalid, "%d rows of values are given: bind one row, and run the statement for each", batch.NumRows())
	}
	if batch.NumCols() > sql.MaxParameters {
		return nil, errorf(KindInvalid, "%d values of parameters are given, the limit is %d", batch.NumCols(), sql.MaxParameters)
	}
	values := make([]sql.Parameter, batch.NumCols())
	for i, a := range batch.Columns() {
		if a.IsNull(0) || a.DataType().ID() == arrow.NULL {
			values[i].Null = true
			continue
		}
		var ok bool
		if values[i], ok = parameterOf(a); !ok {
			return nil, errorf(KindInvalid, "the value of parameter %d has the type %s: give a text, a number, a boolean, bytes, a date or a timestamp", i+1, a.DataType())
		}
	}
	return values, nil
}

// parameterOf returns the first value of a column, and false for a type that no parameter has.
func parameterOf(a arrow.Array) (sql.Parameter, bool) {
	typed := func(name string, text []byte) (sql.Parameter, bool) {
		return sql.Parameter{Type: name, Text: string(text)}, true
	}
	switch a := a.(type) {
	case *array.String:
		return sql.Parameter{Text: a.Value(0)}, true
	case *array.LargeString:
		return sql.Parameter{Text: a.Value(0)}, true
	case *array.Boolean:
		return typed("boolean", strconv.AppendBool(nil, a.Value(0)))
	case *array.Int8, *array.Int16, *array.Int32, *array.Int64, *array.Uint8, *array.Uint16, *array.Uint32, *array.Uint64:
		return typed(sql.NumberType, []byte(a.ValueStr(0)))
	case *array.Decimal128:
		return typed(sql.NumberType, value.AppendDecimal(nil, a.Value(0), a.DataType().(*arrow.Decimal128Type).Scale))
	case *array.Float32:
		return typed("double precision", value.AppendFloat(nil, float64(a.Value(0))))
	case *array.Float64:
		return typed("double precision", value.AppendFloat(nil, a.Value(0)))
	case *array.Binary:
		return typed("bytea", value.AppendBinary(nil, a.Value(0)))
	case *array.LargeBinary:
		return typed("bytea", value.AppendBinary(nil, a.Value(0)))
	case *array.Date32:
		return typed("date", value.AppendDate(nil, a.Value(0)))
	case *array.Timestamp:
		at := a.Value(0).ToTime(a.DataType().(*arrow.TimestampType).Unit)
		return typed("timestamptz", value.AppendTimestamp(nil, arrow.Timestamp(at.Truncate(time.Microsecond).UnixMicro())))
	}
	return sql.Parameter{}, false
}
