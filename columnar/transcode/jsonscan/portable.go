package jsonscan

// UsePortable makes everything run without assembly until the returned function is called, as it does on other machines. It is for tests that compare the
// two, and may not be called while anything else of this package runs.
func UsePortable() (undo func()) {
	was := useAVX2
	useAVX2 = false
	return func() { useAVX2 = was }
}
