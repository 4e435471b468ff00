package schema

// For tests with the packages that read by schemas.
var (
	DrawSchema = drawSchema
	Evolve     = evolve
)
