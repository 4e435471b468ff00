package sqlserver

import (
	"cmp"
	"context"
	"regexp"
	"slices"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/apache/arrow-go/v18/arrow/flight/flightsql"
	"github.com/apache/arrow-go/v18/arrow/flight/flightsql/schema_ref"
	"github.com/apache/arrow-go/v18/arrow/memory"
)

// A category is a table of catalog "" and schema "": a query names only the table.
const (
	catalogName = ""
	schemaName  = ""
	tableType   = "TABLE"
)

// tablesABatch bounds the tables described in one batch.
const tablesABatch = 500

func newFlightSQL(g *Server) (*flightSQL, error) {
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
	return flightInfo(schema_ref.Catalogs, desc.GetCmd(), desc), nil
}

// DoGetCatalogs implements flightsql.Server.
func (f *flightSQL) DoGetCatalogs(context.Context) (*arrow.Schema, <-chan flight.StreamChunk, error) {
	return answerOf(schema_ref.Catalogs, []any{catalogName})
}

// GetFlightInfoSchemas implements flightsql.Server.
func (f *flightSQL) GetFlightInfoSchemas(_ context.Context, _ flightsql.GetDBSchemas, desc *flight.FlightDescriptor) (*flight.FlightInfo, error) {
	return flightInfo(schema_ref.DBSchemas, desc.GetCmd(), desc), nil
}

// DoGetDBSchemas implements flightsql.Server.
func (f *flightSQL) DoGetDBSchemas(_ context.Context, cmd flightsql.GetDBSchemas) (*arrow.Schema, <-chan flight.StreamChunk, error) {
	if !inCatalog(cmd.GetCatalog(), cmd.GetDBSchemaFilterPattern()) {
		return answerOf(schema_ref.DBSchemas)
	}
	return answerOf(schema_ref.DBSchemas, []any{catalogName, schemaName})
}

// inCatalog reports whether the filters match the only schema of the only catalog.
func inCatalog(catalog, schemaPattern *string) bool {
	return (catalog == nil || *catalog == catalogName) && (schemaPattern == nil || matchesLike(schemaName, *schemaPattern))
}

// GetFlightInfoTableTypes implements flightsql.Server.
func (f *flightSQL) GetFlightInfoTableTypes(_ context.Context, desc *flight.FlightDescriptor) (*flight.FlightInfo, error) {
	return flightInfo(schema_ref.TableTypes, desc.GetCmd(), desc), nil
}

// DoGetTableTypes implements flightsql.Server.
func (f *flightSQL) DoGetTableTypes(context.Context) (*arrow.Schema, <-chan flight.StreamChunk, error) {
	return answerOf(schema_ref.TableTypes, []any{tableType})
}

// GetFlightInfoTables implements flightsql.Server.
func (f *flightSQL) GetFlightInfoTables(_ context.Context, cmd flightsql.GetTables, desc *flight.FlightDescriptor) (*flight.FlightInfo, error) {
	return flightInfo(tablesSchema(cmd), desc.GetCmd(), desc), nil
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
		tables = f.g.tables(ctx)
	}
	if p := cmd.GetTableNameFilterPattern(); p != nil {
		tables = slices.DeleteFunc(slices.Clone(tables), func(t tableInfo) bool { return !matchesLike(t.name, *p) })
	}
	tables = slices.SortedFunc(slices.Values(tables), func(a, b tableInfo) int { return cmp.Compare(a.name, b.name) })
	out := make(chan flight.StreamChunk)
	f.g.serving.Go(func() {
		defer close(out)
		for some := range slices.Chunk(tables, tablesABatch) {
			batch, err := describeTables(s, some, cmd.GetIncludeSchema())
			chunk := flight.StreamChunk{Data: batch}
			if err != nil {
				chunk = flight.StreamChunk{Err: rpcError(err)}
			}
			select {
			case out <- chunk:
			case <-ctx.Done():
				if batch != nil {
					batch.Release()
				}
				return
			}
			if err != nil {
				return
			}
		}
	})
	return s, out, nil
}

// describeTables returns the rows of tables, with their schemas if those are asked for.
func describeTables(s *arrow.Schema, tables []tableInfo, withSchemas bool) (arrow.RecordBatch, error) {
	rows := make([][]any, len(tables))
	for i, t := range tables {
		rows[i] = []any{catalogName, schemaName, t.name, tableType}
		if !withSchemas {
			continue
		}
		columns, err := t.columns()
		if err != nil {
			return nil, err
		}
		rows[i] = append(rows[i], flight.SerializeSchema(columns, memory.DefaultAllocator))
	}
	return batchOf(s, rows...), nil
}

// batchOf returns a batch of text and byte columns.
func batchOf(s *arrow.Schema, rows ...[]any) arrow.RecordBatch {
	b := array.NewRecordBuilder(memory.DefaultAllocator, s)
	defer b.Release()
	for _, row := range rows {
		for i, v := range row {
			switch b := b.Field(i).(type) {
			case *array.StringBuilder:
				b.Append(v.(string))
			case *array.BinaryBuilder:
				b.Append(v.([]byte))
			}
		}
	}
	return b.NewRecordBatch()
}

// answerOf returns an answer of one small batch.
func answerOf(s *arrow.Schema, rows ...[]any) (*arrow.Schema, <-chan flight.StreamChunk, error) {
	out := make(chan flight.StreamChunk, 1)
	out <- flight.StreamChunk{Data: batchOf(s, rows...)}
	close(out)
	return s, out, nil
}

// matchesLike matches a SQL LIKE pattern without an escape character, as in Flight SQL's filters: % is any text, _ any character.
func matchesLike(text, pattern string) bool {
	pattern = strings.NewReplacer("%", ".*", "_", ".").Replace(regexp.QuoteMeta(pattern))
	re, err := regexp.Compile("(?s)^" + pattern + "$")
	return err == nil && re.MatchString(text)
}
