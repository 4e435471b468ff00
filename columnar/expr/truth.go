package expr

// Truths is a set of values of three-valued logic. A set of one is the value of a condition. A larger set holds the possible
// values of a condition whose value is not known. [Null] is UNKNOWN. For an expression that is not a bool, True stands for any
// value that is not null.
type Truths uint8

// The values of a condition.
const (
	False Truths = 1 << iota
	True
	Null

	AnyTruth = False | True | Null
)

// TruthOf returns the truth of a bool.
func TruthOf(v bool) Truths {
	if v {
		return True
	}
	return False
}

// Truth returns a constant's value as a condition.
func (l *Literal) Truth() Truths {
	switch l.Value {
	case nil:
		return Null
	case false:
		return False
	}
	return True
}

// Not returns NOT of the values.
func (t Truths) Not() Truths { return t&Null | t&False<<1 | t&True>>1 }

// Join returns the possible values of the junction of two conditions. One value decides it: False an AND, True an OR. Otherwise
// it is null if a term is null.
func (t Truths) Join(o, decides Truths) Truths {
	other := decides.Not()
	return (t|o)&decides | t&o&other | t&Null&spreadTruths(o&^decides) | o&Null&spreadTruths(t&^decides)
}

// spreadTruths returns the full set for a non-empty set, and the empty set for an empty one.
func spreadTruths(t Truths) Truths {
	if t != 0 {
		return AnyTruth
	}
	return 0
}

// Among reports whether the values are in a set, as IS does: true or false, never null.
func (t Truths) Among(set Truths) Truths { return eitherTruth(t&set != 0, t&^set != 0) }

// Orders is a set of possible orders of a pair of values. A comparison is true for some of them: <= for Less and Equal.
type Orders uint8

// Orders of a pair: the first value is below, equal to or above the second.
const (
	Less Orders = 1 << iota
	Equal
	Greater

	AnyOrder = Less | Equal | Greater
)

// Among reports whether the orders are in a set: true, false, or either.
func (o Orders) Among(set Orders) Truths { return eitherTruth(o&set != 0, o&^set != 0) }

func eitherTruth(yes, no bool) (t Truths) {
	if yes {
		t |= True
	}
	if no {
		t |= False
	}
	return t
}
