package vector

// SetLimit changes how much memory an evaluation may take.
func (p *Program) SetLimit(bytes int) { p.limit = bytes }
