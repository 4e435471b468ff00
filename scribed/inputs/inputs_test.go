package inputs

import (
	"errors"
	"fmt"
	"testing"

	"scribe/producer"
)

func TestRefused(t *testing.T) {
	messages := []producer.Message{{Payload: []byte("a")}, {Payload: []byte("bb")}, {Payload: []byte("ccc")}}
	some := func(first, third error) error {
		return &producer.BatchError{Total: 3, Messages: []producer.MessageError{{Index: 0, Err: first}, {Index: 2, Err: third}}}
	}
	for name, c := range map[string]struct {
		err        error
		lost, size int
		final      bool
	}{
		"taken":       {nil, 0, 0, true},
		"again":       {errors.New("full"), 0, 0, false},
		"all":         {fmt.Errorf("x: %w", producer.ErrUnknownCategory), 3, 6, true},
		"some":        {fmt.Errorf("x: %w", some(producer.ErrTooLarge, producer.ErrInvalid)), 2, 4, true},
		"some, again": {some(producer.ErrTooLarge, producer.ErrBufferFull), 0, 0, false},
	} {
		lost, size, final := Refused(messages, c.err)
		if lost != c.lost || size != c.size || final != c.final {
			t.Errorf("%s: %d messages, %d bytes, final %v", name, lost, size, final)
		}
	}
}
