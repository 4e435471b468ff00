package sqlserver

import (
	"cmp"
	"context"
	"slices"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/apache/arrow-go/v18/arrow/flight/flightsql"
	"github.com/apache/arrow-go/v18/arrow/flight/flightsql/schema_ref"
	"github.com/apache/arrow-go/v18/arrow/memory"
)

// A category is a table of the catalog "" and its schema "": a query names it alone.
const (
	catalogName = ""
	schemaName  = ""
	tableType   = "TABLE"
)

// tablesABatch bounds how many tables are described at a time.
const tablesABatch = 500

func newFlightSQL(g *Gateway) (*flightSQL, error) {
	f := &flightSQL{g: g}
	f.Alloc = memory.DefaultAllocator
	for id, value := range map[flightsql.SqlInfo]any{
		flightsql.SqlInfoFlightSqlServerName:         "Scribe",
		flightsql.SqlInfoFlightSqlServerVersion:      g.deps.Version,
		flightsql.SqlInfoFlightSqlServerArrowVersion: arrow.PkgVersion,
		flightsql.SqlInfoFlightSqlServerReadOnly:     true,
		flightsql.SqlInfoFlightSqlServerSql:          true,
		flightsql.SqlInfoFlightSqlServerSubstrait:    false,
		flightsql.SqlInfoFlightSqlServerTransaction:  int32(flightsql.SqlTransactionNone),
		flightsql.SqlInfoFlightSqlServerCancel:       true,
		flightsql.SqlInfoDDLCatalog:                  false,
		flightsql.SqlInfoDDLSchema:                   false,
		flightsql.SqlInfoDDLTable:                    false,
		flightsql.SqlInfoIdentifierQuoteChar:         `"`,
		flightsql.SqlInfoAllTablesAreASelectable:     true,
		flightsql.SqlInfoTransactionsSupported:       false,
	} {
		if err := f.RegisterSqlInfo(id, value); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// GetFlightInfoCatalogs implements flightsql.Server.
func (f *flightSQL) GetFlightInfoCatalogs(_ context.Context, desc *flight.FlightDescriptor) (*flight.FlightInfo, error) {
	return described(schema_ref.Catalogs, desc.GetCmd(), desc), nil
}

// DoGetCatalogs implements flightsql.Server.
func (f *flightSQL) DoGetCatalogs(context.Context) (*arrow.Schema, <-chan flight.StreamChunk, error) {
	return batchOf(schema_ref.Catalogs, func(add func(...any)) { add(catalogName) })
}

// GetFlightInfoSchemas implements flightsql.Server.
func (f *flightSQL) GetFlightInfoSchemas(_ context.Context, _ flightsql.GetDBSchemas, desc *flight.FlightDescriptor) (*flight.FlightInfo, error) {
	return described(schema_ref.DBSchemas, desc.GetCmd(), desc), nil
}

// DoGetDBSchemas implements flightsql.Server.
func (f *flightSQL) DoGetDBSchemas(_ context.Context, cmd flightsql.GetDBSchemas) (*arrow.Schema, <-chan flight.StreamChunk, error) {
	return batchOf(schema_ref.DBSchemas, func(add func(...any)) {
		if inCatalog(cmd.GetCatalog(), cmd.GetDBSchemaFilterPattern()) {
			add(catalogName, schemaName)
		}
	})
}

// inCatalog reports whether filters let the only schema of the only catalog through.
func inCatalog(catalog, schemaPattern *string) bool {
	return (catalog == nil || *catalog == catalogName) && (schemaPattern == nil || like(schemaName, *schemaPattern))
}

// GetFlightInfoTableTypes implements flightsql.Server.
func (f *flightSQL) GetFlightInfoTableTypes(_ context.Context, desc *flight.FlightDescriptor) (*flight.FlightInfo, error) {
	return described(schema_ref.TableTypes, desc.GetCmd(), desc), nil
}

// DoGetTableTypes implements flightsql.Server.
func (f *flightSQL) DoGetTableTypes(context.Context) (*arrow.Schema, <-chan flight.StreamChunk, error) {
	return batchOf(schema_ref.TableTypes, func(add func(...any)) { add(tableType) })
}

// GetFlightInfoTables implements flightsql.Server.
func (f *flightSQL) GetFlightInfoTables(_ context.Context, cmd flightsql.GetTables, desc *flight.FlightDescriptor) (*flight.FlightInfo, error) {
	return described(tablesSchema(cmd), desc.GetCmd(), desc), nil
}

func tablesSchema(cmd flightsql.GetTables) *arrow.Schema {
	if cmd.GetIncludeSchema() {
		return schema_ref.TablesWithIncludedSchema
	}
	return schema_ref.Tables
}

// DoGetTables implements flightsql.Server.
func (f *flightSQL) DoGetTables(ctx context.Context, cmd flightsql.GetTables) (*arrow.Schema, <-chan flight.StreamChunk, error) {
	s := tablesSchema(cmd)
	var tables []tableInfo
	if types := cmd.GetTableTypes(); inCatalog(cmd.GetCatalog(), cmd.GetDBSchemaFilterPattern()) && (len(types) == 0 || slices.Contains(types, tableType)) {
		var err error
		if tables, err = f.g.tables(); err != nil {
			return nil, nil, rpcError(err)
		}
	}
	if p := cmd.GetTableNameFilterPattern(); p != nil {
		tables = slices.DeleteFunc(slices.Clone(tables), func(t tableInfo) bool { return !like(t.name, *p) })
	}
	tables = slices.SortedFunc(slices.Values(tables), func(a, b tableInfo) int { return cmp.Compare(a.name, b.name) })
	out := make(chan flight.StreamChunk)
	f.g.serving.Go(func() {
		defer close(out)
		for some := range slices.Chunk(tables, tablesABatch) {
			b := newRows(s)
			for _, t := range some {
				row := []any{catalogName, schemaName, t.name, tableType}
				if cmd.GetIncludeSchema() {
					row = append(row, flight.SerializeSchema(t.schema, memory.DefaultAllocator))
				}
				b.add(row...)
			}
			chunk := flight.StreamChunk{Data: b.batch()}
			select {
			case out <- chunk:
			case <-ctx.Done():
				chunk.Data.Release()
				return
			}
		}
	})
	return s, out, nil
}

// rows builds a batch of texts and bytes.
type rows struct{ b *array.RecordBuilder }

func newRows(s *arrow.Schema) *rows { return &rows{array.NewRecordBuilder(memory.DefaultAllocator, s)} }

func (r *rows) add(values ...any) {
	for i, v := range values {
		switch b := r.b.Field(i).(type) {
		case *array.StringBuilder:
			b.Append(v.(string))
		case *array.BinaryBuilder:
			b.Append(v.([]byte))
		}
	}
}

func (r *rows) batch() arrow.RecordBatch {
	defer r.b.Release()
	return r.b.NewRecordBatch()
}

// batchOf is an answer of one small batch.
func batchOf(s *arrow.Schema, fill func(add func(...any))) (*arrow.Schema, <-chan flight.StreamChunk, error) {
	r := newRows(s)
	fill(r.add)
	out := make(chan flight.StreamChunk, 1)
	out <- flight.StreamChunk{Data: r.batch()}
	close(out)
	return s, out, nil
}

// like matches a pattern of SQL's LIKE without an escape character, as Flight SQL's filters are: % is any text, _ any character.
func like(text, pattern string) bool {
	t, p := []rune(text), []rune(pattern)
	// The last % and what of the text it has taken so far: to go back to when the rest does not match.
	star, mark := -1, 0
	i, j := 0, 0
	for i < len(t) {
		switch {
		case j < len(p) && p[j] == '%':
			star, mark = j, i
			j++
		case j < len(p) && (p[j] == '_' || p[j] == t[i]):
			i, j = i+1, j+1
		case star >= 0:
			mark++
			i, j = mark, star+1
		default:
			return false
		}
	}
	for j < len(p) && p[j] == '%' {
		j++
	}
	return j == len(p)
}
