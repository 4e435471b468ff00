package inputs

import (
	"errors"
	"fmt"
	"testing"
)

func TestRefused(t *testing.T) {
	messages := []Message{{Payload: []byte("a")}, {Payload: []byte("bb")}, {Payload: []byte("ccc")}}
	for name, c := range map[string]struct {
		err        error
		lost, size int
		final      bool
	}{
		"taken":        {nil, 0, 0, true},
		"again":        {errors.New("full"), 0, 0, false},
		"all":          {fmt.Errorf("unknown category: %w", ErrRefused), 3, 6, true},
		"some":         {fmt.Errorf("x: %w", &RefusedError{Messages: []int{0, 2}, Err: errors.New("too large")}), 2, 4, true},
		"not of these": {&RefusedError{Messages: []int{-1, 3}, Err: errors.New("too large")}, 0, 0, true},
	} {
		lost, size, final := Refused(messages, c.err)
		if lost != c.lost || size != c.size || final != c.final {
			t.Errorf("%s: %d messages, %d bytes, final %v", name, lost, size, final)
		}
	}
	if err := error(&RefusedError{Err: errors.New("x")}); !errors.Is(err, ErrRefused) {
		t.Error("it does not match ErrRefused")
	}
}
