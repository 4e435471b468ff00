package kv

import "fmt"

// ValidateKey reports whether key is within the limits. The error wraps ErrInvalid.
func ValidateKey(key string) error {
	if key == "" || len(key) > MaxKey {
		return fmt.Errorf("%w: a key of %d bytes, want 1 to %d", ErrInvalid, len(key), MaxKey)
	}
	return nil
}

// ValidateRange reports whether r is within the limits, and returns it with its limit set.
func ValidateRange(r KeyRange) (KeyRange, error) {
	if len(r.Prefix) > MaxKey || len(r.After) > MaxKey {
		return r, fmt.Errorf("%w: a range with a prefix of %d and a begin of %d bytes, the limit is %d",
			ErrInvalid, len(r.Prefix), len(r.After), MaxKey)
	}
	if r.Limit <= 0 || r.Limit > MaxRange {
		r.Limit = MaxRange
	}
	return r, nil
}

// ValidateOps reports whether ops may be one transaction. The error wraps ErrInvalid.
func ValidateOps(ops []Op) error {
	if len(ops) == 0 || len(ops) > MaxOps {
		return fmt.Errorf("%w: a transaction of %d operations, want 1 to %d", ErrInvalid, len(ops), MaxOps)
	}
	size := 0
	for i, op := range ops {
		if err := ValidateKey(op.Key); err != nil {
			return fmt.Errorf("operation %d: %w", i, err)
		}
		switch {
		case op.Kind != OpPut && op.Kind != OpDelete && op.Kind != OpCheck:
			return fmt.Errorf("%w: operation %d on %q is of unknown kind %d", ErrInvalid, i, op.Key, op.Kind)
		case op.Kind != OpPut && len(op.Value) != 0:
			return fmt.Errorf("%w: operation %d on %q has a value but does not put", ErrInvalid, i, op.Key)
		case op.Kind == OpCheck && !op.Conditional:
			return fmt.Errorf("%w: operation %d checks %q without a condition", ErrInvalid, i, op.Key)
		case len(op.Value) > MaxValue:
			return fmt.Errorf("%w: a value of %d bytes for %q, the limit is %d", ErrInvalid, len(op.Value), op.Key, MaxValue)
		}
		size += len(op.Key) + len(op.Value)
		for _, earlier := range ops[:i] {
			if earlier.Key == op.Key {
				return fmt.Errorf("%w: key %q occurs twice in a transaction", ErrInvalid, op.Key)
			}
		}
	}
	if size > MaxCommit {
		return fmt.Errorf("%w: a transaction of %d bytes, the limit is %d", ErrInvalid, size, MaxCommit)
	}
	return nil
}
