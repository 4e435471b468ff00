package sqlserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/apache/arrow-go/v18/arrow/flight/flightsql"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"pgregory.net/rapid"

	"scribe/columnar/plan"
	"scribe/columnar/schema"
	"scribe/columnar/sql"
)

// flightClient serves Flight SQL, too, and returns a client, and a context for its calls.
func (s *site) flightClient() (*flightsql.Client, context.Context) {
	s.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		s.t.Fatal(err)
	}
	if _, err := s.ServeFlight(l, FlightSecurity{}); err != nil {
		s.t.Fatal(err)
	}
	c, err := flightsql.NewClient(l.Addr().String(), nil, nil, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = c.Close() })
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	s.t.Cleanup(cancel)
	return c, ctx
}

// table reads the answer that an info describes, as text.
func table(ctx context.Context, t *testing.T, c *flightsql.Client, info *flight.FlightInfo) (rows [][]string, err error) {
	t.Helper()
	if n := len(info.GetEndpoint()); n != 1 {
		t.Fatalf("%d endpoints", n)
	}
	r, err := c.DoGet(ctx, info.GetEndpoint()[0].GetTicket())
	if err != nil {
		return nil, err
	}
	defer r.Release()
	if want, err := flight.DeserializeSchema(info.GetSchema(), memory.DefaultAllocator); err != nil || !want.Equal(r.Schema()) {
		t.Errorf("the info has the schema %v, the answer %v; %v", want, r.Schema(), err)
	}
	for r.Next() {
		for i := range int(r.RecordBatch().NumRows()) {
			row := make([]string, r.RecordBatch().NumCols())
			for j := range row {
				row[j] = r.RecordBatch().Column(j).ValueStr(i)
			}
			rows = append(rows, row)
		}
	}
	return rows, r.Err()
}

func TestFlightStatement(t *testing.T) {
	r := &runner{query: batches(3, 2, nil)}
	s := serve(t, r, nil)
	c, ctx := s.flightClient()
	ctx = metadata.AppendToOutgoingContext(ctx, "scribe-from", "1h", "scribe-limit", "6")
	asked := time.Now()
	info, err := c.Execute(ctx, "SELECT * FROM access")
	if err != nil {
		t.Fatal(err)
	}
	rows, err := table(t.Context(), t, c, info) // without the headers: the ticket has them
	if err != nil || len(rows) != 6 || rows[5][0] != "5" || rows[5][1] != "some text" || rows[3][1] != array.NullValueStr {
		t.Errorf("%v, %v", rows, err)
	}
	got := r.last()
	if got.SQL != "SELECT * FROM access" || got.Limit != 6 || asked.Sub(got.FromTime).Round(time.Minute) != time.Hour {
		t.Errorf("asked %+v", got)
	}
	res, err := c.GetExecuteSchema(ctx, "SELECT * FROM access")
	if err != nil {
		t.Fatal(err)
	}
	if schema, err := flight.DeserializeSchema(res.GetSchema(), memory.DefaultAllocator); err != nil || !schema.Equal(numbered) {
		t.Errorf("%v, %v", schema, err)
	}
	s.counted(apiFlight, resultOK, 1) // schemas are no answers
	if n := testutil.ToFloat64(s.metrics.bytes.WithLabelValues(apiFlight)); n == 0 {
		t.Error("no bytes were counted")
	}
}

func TestFlightPrepared(t *testing.T) {
	s := serve(t, &runner{query: batches(3, 2, nil)}, nil)
	c, ctx := s.flightClient()
	p, err := c.Prepare(ctx, "SELECT * FROM access")
	if err != nil {
		t.Fatal(err)
	}
	if !p.DatasetSchema().Equal(numbered) {
		t.Errorf("schema %v", p.DatasetSchema())
	}
	for range 2 {
		info, err := p.Execute(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if rows, err := table(ctx, t, c, info); err != nil || len(rows) != 6 {
			t.Errorf("%v, %v", rows, err)
		}
	}
	if err := p.Close(ctx); err != nil {
		t.Error(err)
	}
}

// TestFlightParameters: a prepared statement runs with each row of values that is bound, of whatever type; what is bound is checked.
func TestFlightParameters(t *testing.T) {
	r := &runner{query: batches(1, 2, nil)}
	s := serve(t, r, nil)
	c, ctx := s.flightClient()
	p, err := c.Prepare(ctx, "SELECT * FROM access WHERE n = ? AND text = ? LIMIT ?")
	if err != nil {
		t.Fatal(err)
	}
	if got := r.last().SQL; got != "SELECT * FROM access WHERE n = NULL AND text = NULL" {
		t.Errorf("prepared as %s", got)
	}
	if n := p.ParameterSchema().NumFields(); n != 3 || !p.DatasetSchema().Equal(numbered) {
		t.Errorf("%d parameters, %v", n, p.DatasetSchema())
	}
	row := func(values ...any) arrow.RecordBatch {
		var fields []arrow.Field
		var columns []arrow.Array
		for i, v := range values {
			var b array.Builder
			switch v := v.(type) {
			case nil:
				b = array.NewNullBuilder(memory.DefaultAllocator)
				b.AppendNull()
			case int64:
				ints := array.NewInt64Builder(memory.DefaultAllocator)
				ints.Append(v)
				b = ints
			case float64:
				floats := array.NewFloat64Builder(memory.DefaultAllocator)
				floats.Append(v)
				b = floats
			case []byte:
				bytes := array.NewBinaryBuilder(memory.DefaultAllocator, arrow.BinaryTypes.Binary)
				bytes.Append(v)
				b = bytes
			case time.Time:
				times := array.NewTimestampBuilder(memory.DefaultAllocator, &arrow.TimestampType{Unit: arrow.Millisecond, TimeZone: "UTC"})
				times.Append(arrow.Timestamp(v.UnixMilli()))
				b = times
			case string:
				texts := array.NewStringBuilder(memory.DefaultAllocator)
				texts.Append(v)
				b = texts
			}
			a := b.NewArray()
			fields, columns = append(fields, arrow.Field{Name: fmt.Sprint(i), Type: a.DataType(), Nullable: true}), append(columns, a)
		}
		return array.NewRecordBatch(arrow.NewSchema(fields, nil), columns, 1)
	}
	for want, values := range map[string][]any{
		"SELECT * FROM access WHERE n = -7 AND text = 'it''s' LIMIT 3":                                               {int64(-7), "it's", int64(3)},
		"SELECT * FROM access WHERE n = double precision '1.5' AND text = NULL":                                      {1.5, nil, nil},
		"SELECT * FROM access WHERE n = timestamptz '2024-02-03 04:05:06.789+00' AND text = bytea '\\x00ff' LIMIT 1": {time.UnixMilli(1706933106789), []byte{0, 255}, "1"},
	} {
		p, err := c.Prepare(ctx, "SELECT * FROM access WHERE n = ? AND text = ? LIMIT ?")
		if err != nil {
			t.Fatal(err)
		}
		p.SetParameters(row(values...))
		info, err := p.Execute(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if rows, err := table(ctx, t, c, info); err != nil || len(rows) != 2 || r.last().SQL != want {
			t.Errorf("%v: %d rows of %s, %v", values, len(rows), r.last().SQL, err)
		}
		p.SetParameters(row("1", "2", "3")) // other values, with the handle that has some
		if info, err = p.Execute(ctx); err != nil {
			t.Fatal(err)
		}
		if _, err := table(ctx, t, c, info); err != nil || r.last().SQL != "SELECT * FROM access WHERE n = '1' AND text = '2' LIMIT 3" {
			t.Errorf("with other values: %s, %v", r.last().SQL, err)
		}
	}
	for says, values := range map[string]arrow.RecordBatch{
		"has no value: 1 are given": row("x"), "3 parameters, but 4 values": row("1", "2", "3", "4"), "2 rows of values": batchFrom(0, 2, "x"),
		"LIMIT x is not supported": row("1", "2", "x"), "more than 1048576 bytes": row(strings.Repeat("x", maxFlightRequest-500), strings.Repeat("x", 1000)),
	} {
		p, err := c.Prepare(ctx, "SELECT * FROM access WHERE n = ? AND text = ? LIMIT ?")
		if err != nil {
			t.Fatal(err)
		}
		p.SetParameters(values)
		if _, err := p.Execute(ctx); err == nil || !strings.Contains(err.Error(), says) && (says[0] != 'm' || status.Code(err) != codes.ResourceExhausted) {
			t.Errorf("%s: got %v", says, err)
		}
	}
}

// TestPlacesOfBoundText: errors have no place in a text that the client did not send, over HTTP and Flight.
func TestPlacesOfBoundText(t *testing.T) {
	place := &Error{Kind: KindInvalid, Message: "no such column", Line: 1, Column: 8, Position: 7, Caret: "SELECT x\n       ^", Hint: "look"}
	fail := func(context.Context, *Request) (rowSource, error) { return nil, place }
	r := &runner{query: fail}
	s := serve(t, r, nil)
	if got := read(t, s.get("?sql=select+x+from+t").Body); !strings.Contains(got, `"position": 7`) {
		t.Errorf("as sent: %s", got)
	}
	got := read(t, s.get("?sql=select+x+from+t+where+y+%3D+%3F&param=1").Body)
	if !strings.Contains(got, "no such column") || !strings.Contains(got, "look") || strings.Contains(got, "position") || strings.Contains(got, "line") || strings.Contains(got, "caret") {
		t.Errorf("with a value: %s", got)
	}
	c, ctx := s.flightClient()
	if _, err := c.Prepare(ctx, "SELECT x FROM t WHERE y = ?"); err == nil || !strings.Contains(err.Error(), "no such column\nHINT: look") {
		t.Errorf("prepared: %v", err)
	}
	r.query = batches(1, 1, nil)
	p, err := c.Prepare(ctx, "SELECT x FROM t WHERE y = ?")
	if err != nil {
		t.Fatal(err)
	}
	ints := batchFrom(1, 1, "x")
	p.SetParameters(array.NewRecordBatch(arrow.NewSchema(ints.Schema().Fields()[:1], nil), ints.Columns()[:1], 1))
	info, err := p.Execute(ctx)
	if err != nil {
		t.Fatal(err)
	}
	r.query = fail
	if _, err := table(ctx, t, c, info); err == nil || !strings.Contains(err.Error(), "no such column\nHINT: look") {
		t.Errorf("the ticket: %v", err)
	}
}

// TestPrepareConstants: a parameter may stand for what must be a constant. What is wrong without it is refused at once.
func TestPrepareConstants(t *testing.T) {
	times, err := schema.Parse([]byte("format: json\nfields:\n  - {name: ts, type: timestamp}\n"))
	if err != nil {
		t.Fatal(err)
	}
	bind := func(ctx context.Context, req *Request) (rowSource, error) {
		q, err := sql.Parse(req.SQL)
		if err != nil {
			return nil, clientError(err)
		}
		if _, err := plan.Bind(q, times, plan.Options{Now: time.Unix(0, 0)}); err != nil {
			return nil, clientError(err)
		}
		return batches(1, 2, nil)(ctx, req)
	}
	s := serve(t, &runner{query: bind}, nil)
	c, ctx := s.flightClient()
	p, err := c.Prepare(ctx, "SELECT date_trunc(?, ts) FROM t")
	if err != nil {
		t.Fatal(err)
	}
	if p.DatasetSchema() != nil || p.ParameterSchema().NumFields() != 1 {
		t.Errorf("schemas %v, %v", p.DatasetSchema(), p.ParameterSchema())
	}
	texts := array.NewStringBuilder(memory.DefaultAllocator)
	texts.Append("hour")
	p.SetParameters(array.NewRecordBatch(arrow.NewSchema([]arrow.Field{{Name: "1", Type: arrow.BinaryTypes.String}}, nil), []arrow.Array{texts.NewArray()}, 1))
	info, err := p.Execute(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if rows, err := table(ctx, t, c, info); err != nil || len(rows) != 2 {
		t.Errorf("%d rows, %v", len(rows), err)
	}
	for _, text := range []string{"SELECT date_trunc(?, other) FROM t", "SELECT date_trunc(NULL, ts) FROM t"} {
		if _, err := c.Prepare(ctx, text); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// TestListings: SHOW TABLES and DESCRIBE list what the caller may see, and nothing else.
func TestListings(t *testing.T) {
	r := &runner{}
	s := serve(t, r, nil)
	s.deps.Rights, s.deps.Categories = &onlyOne{category: "access"}, twoCategories{}
	s.tables, s.open = s.listTables, s.openQuery
	for text, want := range map[string]string{
		"SHOW TABLES":                     `{"name":"access"}` + "\n",
		"describe access":                 `{"column_name":"payload","column_type":"binary","null":"YES"}`,
		"describe accession":              `there is no category \"accession\"`,
		"show columns from accession":     `there is no category \"accession\"`,
		"show databases":                  "expected TABLES",
		"describe accession limit 1":      "syntax error",
		"SELECT * FROM accession LIMIT 1": "may not do that",
	} {
		res := s.do("GET", "?"+url.Values{"sql": {text}}.Encode(), "")
		if got := read(t, res.Body); !strings.Contains(strings.ToLower(got), strings.ToLower(want)) || strings.HasPrefix(text, "SHOW") && got != want {
			t.Errorf("%s: %s %s", text, res.Status, got)
		}
	}
	if res := s.do("GET", "?sql=show+tables&follow=1", ""); res.StatusCode != http.StatusBadRequest {
		t.Errorf("followed: %s", res.Status)
	}
	if got := read(t, s.do("GET", "?sql=describe+access&limit=2&format=csv", "").Body); strings.Count(got, "\n") != 3 {
		t.Errorf("got %q", got)
	}
	c, ctx := s.flightClient()
	info, err := c.Execute(ctx, "SHOW TABLES")
	if err != nil {
		t.Fatal(err)
	}
	if rows, err := table(ctx, t, c, info); err != nil || len(rows) != 1 || rows[0][0] != "access" {
		t.Errorf("%v, %v", rows, err)
	}
	s.deps.Rights = &onlyOne{}
	if res := s.do("GET", "?sql=show+tables", ""); res.StatusCode != http.StatusUnauthorized {
		t.Errorf("to nobody: %s", res.Status)
	}
}

// TestDamagedSchema: a schema that can't be read fails what needs it, and nothing else.
func TestDamagedSchema(t *testing.T) {
	s := serve(t, &runner{}, nil)
	s.deps.Categories = damagedCategory{}
	s.tables, s.open = s.listTables, s.openQuery
	for text, want := range map[string]string{
		"SHOW TABLES":      `{"name":"damaged"}` + "\n" + `{"name":"whole"}`,
		"DESCRIBE whole":   `"column_name":"payload"`,
		"DESCRIBE damaged": `read the schema of category \"damaged\"`,
	} {
		if got := read(t, s.do("GET", "?"+url.Values{"sql": {text}}.Encode(), "").Body); !strings.Contains(got, want) {
			t.Errorf("%s: %s", text, got)
		}
	}
	c, ctx := s.flightClient()
	for want, opts := range map[string]*flightsql.GetTablesOpts{
		"damaged whole": {}, "whole": {IncludeSchema: true, TableNameFilterPattern: new("wh%")}, "! damaged": {IncludeSchema: true},
	} {
		info, err := c.GetTables(ctx, opts)
		if err != nil {
			t.Fatal(err)
		}
		rows, err := table(ctx, t, c, info)
		var names []string
		for _, row := range rows {
			names = append(names, row[2])
		}
		if got := strings.Join(names, " "); (err != nil || got != want) && (want[0] != '!' || err == nil || !strings.Contains(err.Error(), "damaged")) {
			t.Errorf("%s: got %s, %v", want, got, err)
		}
	}
}

func TestFlightErrors(t *testing.T) {
	place := &Error{Kind: KindInvalid, Message: "no such column", Line: 1, Column: 8, Position: 7, Caret: "SELECT x\n       ^", Hint: "look"}
	for name, e := range map[string]struct {
		err  error
		code codes.Code
	}{
		"invalid":     {place, codes.InvalidArgument},
		"unknown":     {errorf(KindUnknown, "no category"), codes.NotFound},
		"limit":       {errorf(KindLimit, "too many groups"), codes.ResourceExhausted},
		"unavailable": {errorf(KindUnavailable, "away"), codes.Unavailable},
		"other":       {errors.New("boom"), codes.Internal},
	} {
		t.Run(name, func(t *testing.T) {
			r := &runner{query: func(context.Context, *Request) (rowSource, error) { return nil, e.err }}
			s := serve(t, r, nil)
			c, ctx := s.flightClient()
			_, err := c.Execute(ctx, "SELECT x")
			if status.Code(err) != e.code {
				t.Errorf("bound: %v", err)
			}
			if errors.Is(e.err, place) && !strings.Contains(err.Error(), "no such column\nSELECT x\n       ^\nHINT: look") {
				t.Errorf("got %v", err)
			}
			r.query = batches(2, 2, e.err)
			info, err := c.Execute(ctx, "SELECT x")
			if err != nil {
				t.Fatal(err)
			}
			if rows, err := table(ctx, t, c, info); status.Code(err) != e.code || len(rows) != 4 {
				t.Errorf("on the way: %d rows, %v", len(rows), err)
			}
		})
	}
	s := serve(t, &runner{query: batches(1, 1, nil)}, nil)
	c, ctx := s.flightClient()
	for name, handle := range map[string][]byte{"foreign": []byte("x"), "cut": []byte(ticketMagic + `{"sql":`), "long": []byte(ticketMagic + `"` + strings.Repeat("x", maxBody))} {
		ticket, err := flightsql.CreateStatementQueryTicket(handle)
		if err != nil {
			t.Fatal(err)
		}
		if r, err := c.DoGet(ctx, &flight.Ticket{Ticket: ticket}); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v", name, err)
			r.Release()
		}
	}
	if _, err := c.Execute(ctx, strings.Repeat("x", MaxText+1)); status.Code(err) != codes.InvalidArgument {
		t.Errorf("a long query: %v", err)
	}
	if _, err := c.Execute(metadata.AppendToOutgoingContext(ctx, "scribe-from", "noon"), "x"); status.Code(err) != codes.InvalidArgument {
		t.Errorf("a bad header: %v", err)
	}
	// What is written is refused at its first message: who still sends, as ExecuteUpdate, may learn only that the stream is over.
	put, err := c.Client.DoPut(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := put.Send(&flight.FlightData{FlightDescriptor: &flight.FlightDescriptor{Type: flight.DescriptorCMD, Cmd: []byte("x")}}); err != nil {
		t.Fatal(err)
	}
	if _, err := put.Recv(); status.Code(err) != codes.Unimplemented || !strings.Contains(err.Error(), "write with the producer") {
		t.Errorf("a write: %v", err)
	}
}

func TestFlightTooMany(t *testing.T) {
	ended := make(chan struct{})
	s := serve(t, &runner{query: hanging(ended)}, func(c *Config) { c.MaxQueries, c.MaxFollows = 1, 0 })
	c, ctx := s.flightClient()
	info, err := c.Execute(ctx, "SELECT 1")
	if err != nil {
		t.Fatal(err)
	}
	r, err := c.DoGet(ctx, info.GetEndpoint()[0].GetTicket())
	if err != nil || !r.Next() {
		t.Fatal(err)
	}
	_, err = c.Execute(ctx, "SELECT 1")
	if details := status.Convert(err).Details(); status.Code(err) != codes.ResourceExhausted || len(details) != 1 || details[0].(*errdetails.RetryInfo).GetRetryDelay().AsDuration() == 0 {
		t.Errorf("%v with %v", err, details)
	}
	// Who asked may end it from elsewhere.
	res, err := c.CancelFlightInfo(ctx, &flight.CancelFlightInfoRequest{Info: info})
	if err != nil || res.GetStatus() != flight.CancelStatusCancelled {
		t.Errorf("%v, %v", res.GetStatus(), err)
	}
	<-ended
	if r.Next() || status.Code(r.Err()) != codes.Canceled {
		t.Errorf("cancelled: %v", r.Err())
	}
	r.Release()
	if res, err := c.CancelFlightInfo(ctx, &flight.CancelFlightInfoRequest{Info: info}); err != nil || res.GetStatus() != flight.CancelStatusNotCancellable {
		t.Errorf("again: %v, %v", res.GetStatus(), err)
	}
}

// TestFlightGone: a client that goes away ends its query at once; one that takes nothing does so in time.
func TestFlightGone(t *testing.T) {
	ended := make(chan struct{})
	rn := &runner{query: hanging(ended)}
	s := serve(t, rn, nil)
	c, ctx := s.flightClient()
	info, err := c.Execute(ctx, "SELECT 1")
	if err != nil {
		t.Fatal(err)
	}
	callCtx, cancel := context.WithCancel(ctx)
	r, err := c.DoGet(callCtx, info.GetEndpoint()[0].GetTicket())
	if err != nil || !r.Next() {
		t.Fatal(err)
	}
	cancel()
	<-ended
	r.Release()
	s.counted(apiFlight, "cancelled", 1)

	s = serve(t, &runner{query: endless(4000, 1000)}, func(c *Config) { c.StallTimeout = time.Second })
	c, ctx = s.flightClient()
	if info, err = c.Execute(ctx, "SELECT 1"); err != nil {
		t.Fatal(err)
	}
	slow, err := c.DoGet(ctx, info.GetEndpoint()[0].GetTicket())
	switch {
	case err == nil:
		defer slow.Release()
	case status.Code(err) != codes.DeadlineExceeded: // a busy machine's client may not even have taken the schema
		t.Fatal(err)
	}
	s.await(func() bool { return testutil.ToFloat64(s.metrics.stalled) == 1 })
	s.counted(apiFlight, "cancelled", 1)
}

func TestFlightLarge(t *testing.T) {
	s := serve(t, &runner{query: func(ctx context.Context, _ *Request) (rowSource, error) {
		left := 1
		return &result{next: func() (arrow.RecordBatch, error) {
			if left--; left < 0 {
				return nil, io.EOF
			}
			return batchFrom(0, 20_000, strings.Repeat("x", 1000)), nil // five times what gRPC's clients take at once
		}}, nil
	}}, nil)
	c, ctx := s.flightClient()
	info, err := c.Execute(ctx, "SELECT 1")
	if err != nil {
		t.Fatal(err)
	}
	if rows, err := table(ctx, t, c, info); err != nil || len(rows) != 20_000 || rows[19_999][0] != "19999" {
		t.Errorf("%d rows, %v", len(rows), err)
	}
}

func TestFlightCatalog(t *testing.T) {
	columns := func() (*arrow.Schema, error) { return numbered, nil }
	r := &runner{tables: []tableInfo{{"nginx.status", columns}, {"access", columns}, {"access2", columns}}}
	s := serve(t, r, nil)
	c, ctx := s.flightClient()
	names := func(opts *flightsql.GetTablesOpts) (out []string) {
		t.Helper()
		info, err := c.GetTables(ctx, opts)
		if err != nil {
			t.Fatal(err)
		}
		rows, err := table(ctx, t, c, info)
		if err != nil {
			t.Fatal(err)
		}
		for _, row := range rows {
			if row[0] != "" || row[1] != "" || row[3] != "TABLE" {
				t.Errorf("%v", row)
			}
			out = append(out, row[2])
		}
		return out
	}
	for _, g := range []struct {
		opts *flightsql.GetTablesOpts
		want string
	}{
		{&flightsql.GetTablesOpts{}, "access access2 nginx.status"},
		{&flightsql.GetTablesOpts{IncludeSchema: true}, "access access2 nginx.status"},
		{&flightsql.GetTablesOpts{TableNameFilterPattern: new("access_")}, "access2"},
		{&flightsql.GetTablesOpts{TableNameFilterPattern: new("%s%")}, "access access2 nginx.status"},
		{&flightsql.GetTablesOpts{TableTypes: []string{"VIEW"}}, ""},
		{&flightsql.GetTablesOpts{TableTypes: []string{"VIEW", "TABLE"}, Catalog: new(""), DbSchemaFilterPattern: new("%")}, "access access2 nginx.status"},
		{&flightsql.GetTablesOpts{Catalog: new("other")}, ""},
		{&flightsql.GetTablesOpts{DbSchemaFilterPattern: new("public")}, ""},
	} {
		if got := strings.Join(names(g.opts), " "); got != g.want {
			t.Errorf("%+v: got %q", g.opts, got)
		}
	}
	info, err := c.GetTables(ctx, &flightsql.GetTablesOpts{IncludeSchema: true})
	if err != nil {
		t.Fatal(err)
	}
	in, err := c.DoGet(ctx, info.GetEndpoint()[0].GetTicket())
	if err != nil || !in.Next() {
		t.Fatal(err)
	}
	if got, err := flight.DeserializeSchema(in.RecordBatch().Column(4).(*array.Binary).Value(0), memory.DefaultAllocator); err != nil || !got.Equal(numbered) {
		t.Errorf("%v, %v", got, err)
	}
	in.Release()
	for name, ask := range map[string]func() (*flight.FlightInfo, error){
		"[[]]":      func() (*flight.FlightInfo, error) { return c.GetCatalogs(ctx) },
		"[[ ]]":     func() (*flight.FlightInfo, error) { return c.GetDBSchemas(ctx, &flightsql.GetDBSchemasOpts{}) },
		"[[TABLE]]": func() (*flight.FlightInfo, error) { return c.GetTableTypes(ctx) },
	} {
		info, err := ask()
		if err != nil {
			t.Fatal(err)
		}
		if rows, err := table(ctx, t, c, info); err != nil || fmt.Sprint(rows) != name {
			t.Errorf("got %v, %v, want %s", rows, err, name)
		}
	}
	info, err = c.GetSqlInfo(ctx, []flightsql.SqlInfo{flightsql.SqlInfoFlightSqlServerName, flightsql.SqlInfoFlightSqlServerVersion})
	if err != nil {
		t.Fatal(err)
	}
	if rows, err := table(ctx, t, c, info); err != nil || len(rows) != 2 || !strings.Contains(rows[0][1], "Scribe") || !strings.Contains(rows[1][1], "test") {
		t.Errorf("%v, %v", rows, err)
	}
}

// TestLike compares with the obvious definition.
func TestLike(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		letters := rapid.SliceOfN(rapid.SampledFrom([]rune("ab%_é")), 0, 8)
		text, pattern := letters.Draw(t, "text"), letters.Draw(t, "pattern")
		var slow func(text, pattern []rune) bool
		slow = func(text, pattern []rune) bool {
			if len(pattern) == 0 {
				return len(text) == 0
			}
			if pattern[0] == '%' {
				return slow(text, pattern[1:]) || len(text) > 0 && slow(text[1:], pattern)
			}
			return len(text) > 0 && (pattern[0] == '_' || pattern[0] == text[0]) && slow(text[1:], pattern[1:])
		}
		if got, want := matchesLike(string(text), string(pattern)), slow(slices.Clone(text), pattern); got != want {
			t.Fatalf("like(%q, %q) = %v", string(text), string(pattern), got)
		}
	})
}
