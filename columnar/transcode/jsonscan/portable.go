package jsonscan

// UsePortable disables the assembly until the returned function is called, as on other machines. It is for tests that compare
// both versions, and must not be called while other code of this package runs.
func UsePortable() (undo func()) {
	was := useAVX2
	useAVX2 = false
	return func() { useAVX2 = was }
}
