package schema

// Format is the format of a category's messages.
type Format string

// Message formats.
const (
	JSON     Format = "json"     // one JSON object per message
	NDJSON   Format = "ndjson"   // one JSON object per line: a message is a batch of rows
	CSV      Format = "csv"      // lines of comma-separated values: a message is a batch of rows
	Avro     Format = "avro"     // one Avro datum per message, with the writer's schema in Schema.Avro
	Protobuf Format = "protobuf" // one protobuf message per message, with the descriptor set in Schema.Protobuf
	Arrow    Format = "arrow"    // Arrow record batches, as frames: columns are matched by name
)

// OnError selects what happens to a row with a value that does not fit its column.
type OnError string

const (
	// OnErrorNull makes the value null. The column [ColumnError] says which values of the row did not fit and why. In a row that
	// can't be read at all, every declared column is null.
	OnErrorNull OnError = "null"
	// OnErrorReject omits the row from all results, and counts it.
	OnErrorReject OnError = "reject"
)

// Names of the built-in columns of every category. Declared names must not begin with an underscore.
const (
	ColumnTime      = "_time"      // timestamp: the message's event time
	ColumnPersisted = "_persisted" // timestamp: when its pointer was committed
	ColumnKey       = "_key"       // binary, null without a key
	ColumnShard     = "_shard"     // uint64: physical shard
	ColumnOffset    = "_offset"    // uint64: position in the shard, as columnar.Offset makes it
	ColumnAttr      = "_attr"      // map<string>: the message's attributes; bytes that are not UTF-8 are replaced by U+FFFD
	ColumnRate      = "_rate"      // int64: the message stands for so many, because the category's quota left out others; 1 without sampling
	ColumnRest      = "_rest"      // string, null if empty: a JSON object of the undeclared top-level fields of a JSON row
	ColumnError     = "_error"     // string, null if none: which values of the row did not fit, and why
	ColumnPayload   = "payload"    // binary: the message's bytes; only in categories without a schema
)

// Schema is one version of the mapping from a category's messages to columns.
type Schema struct {
	// Version counts from 1. Version 0 is the schema of a category that has none: payload and the message's columns.
	Version uint32  `json:"version"`
	Format  Format  `json:"format"`
	OnError OnError `json:"on_error"`
	Fields  []Field `json:"-"` // see schemaDocument
	// CSV describes how lines are split. Only with the format CSV.
	CSV *CSVOptions `json:"csv,omitempty"`
	// Avro is the writer's schema as JSON. Only with the format Avro.
	Avro string `json:"avro,omitempty"`
	// Protobuf names the message type. Only with the format Protobuf.
	Protobuf *ProtobufOptions `json:"protobuf,omitempty"`
}

// CSVOptions describes how a CSV line is split. A schema field refers to a column by Path[0], or by position if there is no
// header.
type CSVOptions struct {
	Delimiter string   `json:"delimiter"`         // one character, default ","
	Header    bool     `json:"header,omitempty"`  // the first line of each message names the columns
	Columns   []string `json:"columns,omitempty"` // column names if there is no header; default the field names in order
	Null      string   `json:"null,omitempty"`    // the text that means null; default the empty text without quotes
}

// ProtobufOptions names the message type of a category.
type ProtobufOptions struct {
	Message     string `json:"message"`     // full name of the message
	Descriptors []byte `json:"descriptors"` // a serialised FileDescriptorSet
}

// Column is a column that a query can refer to.
type Column struct {
	Name string
	Type Type
	// Field is the index in Schema.Fields, or -1 for a built-in column.
	Field int
}

// Columns returns every column that a query can refer to: the declared ones in order, then the built-in ones.
func (s *Schema) Columns() []Column {
	columns := make([]Column, 0, len(s.Fields)+10)
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
		Column{Name: ColumnRate, Type: Type{Kind: Int64}, Field: -1},
	)
}
