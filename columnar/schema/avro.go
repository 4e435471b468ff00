package schema

import (
	"errors"

	"scribe/columnar/avrotype"
)

// checkAvro reports what keeps the writer's schema of messages from being read, or messages from being read with it.
func checkAvro(text string) error {
	t, err := avrotype.Parse(text)
	if err == nil && t.Kind != avrotype.Record {
		err = errors.New("the top type is not a record, whose fields become columns")
	}
	return err
}
