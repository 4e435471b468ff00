package schema

import (
	"errors"

	"scribe/columnar/avrotype"
)

// checkAvro returns an error if the writer's schema is invalid or messages can't be read with it.
func checkAvro(text string) error {
	t, err := avrotype.Parse(text)
	if err == nil && t.Kind != avrotype.Record {
		err = errors.New("the top type is not a record, whose fields become columns")
	}
	return err
}
