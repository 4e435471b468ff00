package schema

// Bounds of a schema.
const (
	// MaxText is the longest text of a schema, and of all versions of a category together, in bytes.
	MaxText = 1 << 20
	// MaxDepth is how deep types nest.
	MaxDepth = 12
	// MaxTypes is how many types a schema has, all of those within lists, maps and structs counted; a map counts for three.
	MaxTypes = 4000
	// MaxName is the longest name of a column or a struct's field, in bytes.
	MaxName = 255
	// MaxPath is how many steps a path has, MaxKey how many bytes a step.
	MaxPath = 32
	MaxKey  = 1024
	// MaxAliases is how many aliases a field has, MaxFormats how many time formats a type.
	MaxAliases = 32
	MaxFormats = 16
	// MaxDefault and MaxDoc are the longest default and description, in bytes.
	MaxDefault = 64 << 10
	MaxDoc     = 4096
	// MaxVersions is how many versions of a category are kept.
	MaxVersions = 1000
)
