package schema

// Format is how a category's messages are written.
type Format string

// Formats of messages.
const (
	JSON     Format = "json"     // one JSON object a message
	NDJSON   Format = "ndjson"   // JSON objects, one a line: a message is a batch of rows
	CSV      Format = "csv"      // lines of comma-separated values: a message is a batch of rows
	Avro     Format = "avro"     // one Avro datum a message, of the writer's schema in Schema.Avro
	Protobuf Format = "protobuf" // one protobuf message a message, of the descriptor set in Schema.Protobuf
	Arrow    Format = "arrow"    // Arrow record batches, as frames: columns are matched by name
)

// OnError says what becomes of a row of which a value does not fit its column.
type OnError string

const (
	// OnErrorNull makes the value null; the column [ColumnError] says which values of the row did not fit and why. Of a row that can't be
	// read at all every declared column is null.
	OnErrorNull OnError = "null"
	// OnErrorReject leaves the row out of every answer, and counts it.
	OnErrorReject OnError = "reject"
)

// Names of the columns that every category has beside its declared ones. Declared names don't begin with an underscore.
const (
	ColumnTime      = "_time"      // timestamp: the message's event time
	ColumnPersisted = "_persisted" // timestamp: when its pointer was committed
	ColumnKey       = "_key"       // binary, null without a key
	ColumnShard     = "_shard"     // uint64: physical shard
	ColumnOffset    = "_offset"    // uint64: position in the shard, as columnar.Offset makes it
	ColumnAttr      = "_attr"      // map<string>: the message's attributes; bytes that are not UTF-8 are replaced by U+FFFD
	ColumnRest      = "_rest"      // string, null if empty: a JSON object of the undeclared top-level fields of a JSON row
	ColumnError     = "_error"     // string, null if none: what of the row did not fit
	ColumnPayload   = "payload"    // binary: the message's bytes; only of categories without a schema
)

// Schema is one version of how a category's messages become columns.
type Schema struct {
	// Version counts from 1; 0 is the schema of a category that has none: payload and the message's columns.
	Version uint32
	Format  Format
	OnError OnError
	Fields  []Field
	// CSV says how lines are cut; only with the format CSV.
	CSV *CSVOptions
	// Avro is the writer's schema, as JSON; only with the format Avro.
	Avro string
	// Protobuf names the message; only with the format Protobuf.
	Protobuf *ProtobufOptions
}

// CSVOptions says how a CSV line is cut. Fields of the schema stand for columns by Path[0], or by their position when there is no header.
type CSVOptions struct {
	Delimiter string   // one character, default ","
	Header    bool     // the first line of each message names the columns
	Columns   []string // names of the columns when there is no header; default the names of the fields in their order
	Null      string   // the text that is null; default the empty text without quotes
}

// ProtobufOptions names the type of a category's messages.
type ProtobufOptions struct {
	Descriptors []byte // a serialised FileDescriptorSet
	Message     string // full name of the message
}

// Column is a column that a query can name.
type Column struct {
	Name string
	Type Type
	// Field is the index in Schema.Fields, -1 for the columns that every category has.
	Field int
}

// Columns returns every column that a query can name: the declared ones in their order, then those that every category has.
func (s *Schema) Columns() []Column {
	columns := make([]Column, 0, len(s.Fields)+9)
	for i := range s.Fields {
		columns = append(columns, Column{Name: s.Fields[i].Name, Type: s.Fields[i].Type, Field: i})
	}
	if s.Version == 0 {
		columns = append(columns, Column{Name: ColumnPayload, Type: Type{Kind: Binary}, Field: -1})
	} else {
		columns = append(columns, Column{Name: ColumnRest, Type: Type{Kind: String}, Field: -1}, Column{Name: ColumnError, Type: Type{Kind: String}, Field: -1})
	}
	return append(columns,
		Column{Name: ColumnTime, Type: Type{Kind: Timestamp}, Field: -1},
		Column{Name: ColumnPersisted, Type: Type{Kind: Timestamp}, Field: -1},
		Column{Name: ColumnKey, Type: Type{Kind: Binary}, Field: -1},
		Column{Name: ColumnShard, Type: Type{Kind: Uint64}, Field: -1},
		Column{Name: ColumnOffset, Type: Type{Kind: Uint64}, Field: -1},
		Column{Name: ColumnAttr, Type: Type{Kind: Map, Elem: &Type{Kind: String}}, Field: -1},
	)
}
