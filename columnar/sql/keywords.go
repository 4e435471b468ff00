package sql

// keywordClass restricts the use of a word as a name.
type keywordClass uint8

const (
	notColumn keywordClass = 1 << 0 // not a column or category name without quotes
	notBare   keywordClass = 1 << 1 // not an alias without AS
	special   keywordClass = 1 << 2 // has special syntax: quoted in canonical text to be safe
)

// keywords contains PostgreSQL's reserved words and the words with special syntax.
var keywords = func() map[string]keywordClass {
	m := map[string]keywordClass{}
	// Reserved, or only the name of a function or type.
	for _, w := range []string{
		"all", "analyse", "analyze", "and", "any", "array", "as", "asc", "asymmetric", "authorization", "binary", "both", "case", "cast",
		"check", "collate", "collation", "column", "concurrently", "constraint", "create", "cross", "current_catalog", "current_date",
		"current_role", "current_schema", "current_time", "current_timestamp", "current_user", "default", "deferrable", "desc", "distinct", "do",
		"else", "end", "except", "false", "fetch", "for", "foreign", "freeze", "from", "full", "grant", "group", "having", "ilike", "in",
		"initially", "inner", "intersect", "into", "is", "isnull", "join", "lateral", "leading", "left", "like", "limit", "localtime",
		"localtimestamp", "natural", "not", "notnull", "null", "offset", "on", "only", "or", "order", "outer", "overlaps", "placing", "primary",
		"references", "returning", "right", "select", "session_user", "similar", "some", "symmetric", "system_user", "table", "tablesample",
		"then", "to", "trailing", "true", "union", "unique", "user", "using", "variadic", "verbose", "when", "where", "window", "with",
	} {
		m[w] = notColumn | notBare | special
	}
	// Allowed as column names, but not as aliases without AS, because they may follow an expression.
	for _, w := range []string{
		"between", "day", "escape", "filter", "hour", "minute", "month", "over", "second", "within", "without", "year", "at", "nulls",
	} {
		m[w] = notBare
	}
	// Column names with special syntax.
	for _, w := range []string{
		"between", "bigint", "bit", "boolean", "char", "character", "coalesce", "dec", "decimal", "double", "exists", "extract", "float", "greatest",
		"grouping", "int", "integer", "interval", "least", "national", "nchar", "none", "nullif", "numeric", "overlay", "position", "precision",
		"real", "row", "setof", "smallint", "substring", "time", "timestamp", "timestamptz", "treat", "trim", "values", "varchar", "date",
	} {
		m[w] |= special
	}
	return m
}()
