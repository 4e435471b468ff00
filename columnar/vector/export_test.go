package vector

// SetLimit changes how much memory an evaluation may take.
func (p *Program) SetLimit(bytes int) { p.budget = memoryBudget{bytes, bytes, bytes} }

// SetPieces changes how much memory a piece, a row and all pieces may take.
func (p *Program) SetPieces(piece, row, total int) { p.budget = memoryBudget{piece, row, total} }

// SetPieces is that of the condition.
func (f *Filter) SetPieces(piece, row, total int) { f.p.SetPieces(piece, row, total) }
