package kv

// SplitOps divides operations into as few transactions as their order allows, each with room for a number of reserved conditions.
func SplitOps(ops []Op, reserved int) (parts [][]Op) {
	begin, size := 0, 0
	for i, op := range ops {
		n := len(op.Key) + len(op.Value)
		if i > begin && (i-begin >= MaxOps-reserved || size+n > MaxCommit-MaxKey*reserved) {
			parts = append(parts, ops[begin:i])
			begin, size = i, 0
		}
		size += n
	}
	if begin < len(ops) {
		parts = append(parts, ops[begin:])
	}
	return parts
}
