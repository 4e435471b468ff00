package schema

import "scribe/internal/format/placement"

// Bounds of a schema.
const (
	// MaxText is the maximum length in bytes of a schema's text, and of all versions of a category together.
	MaxText = 1 << 20
	// MaxDepth is the maximum nesting depth of types.
	MaxDepth = 12
	// MaxTypes is the maximum number of types in a schema, including those within lists, maps and structs. A map counts as three.
	MaxTypes = 4000
	// MaxName is the maximum length in bytes of the name of a column or nested field.
	MaxName = 255
	// MaxPath is the maximum number of steps in a path, MaxKey the maximum length of a step in bytes.
	MaxPath = placement.MaxSteps
	MaxKey  = 1024
	// MaxAliases is the maximum number of aliases of a field, MaxFormats of time formats of a type.
	MaxAliases = 32
	MaxFormats = 16
	// MaxDefault and MaxDoc are the maximum lengths in bytes of a default and a description.
	MaxDefault = 64 << 10
	MaxDoc     = 4096
	// MaxVersions is the maximum number of versions of a category that are kept.
	MaxVersions = 1000
)
