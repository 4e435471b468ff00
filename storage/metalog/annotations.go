package metalog

import (
	"fmt"

	"scribe/internal/format/record"
)

// Limits of annotations.
const (
	// MaxAnnotation is the largest annotation in bytes.
	MaxAnnotation = 8 << 10
	// MaxAnnotations is the largest number of annotations, and MaxAnnotateBytes the most data, in one call of Annotate.
	MaxAnnotations   = 1_000
	MaxAnnotateBytes = 4 << 20
)

// Annotation is data kept beside a record that describes what the record refers to, and that can be derived again from it. A
// record has at most one annotation of each kind.
type Annotation struct {
	Shard record.ShardID
	LSN   record.LSN
	Kind  AnnotationKind
	// Data is 1 byte to MaxAnnotation.
	Data []byte
}

// AnnotationKind is the kind of an annotation. The numbers are persisted and never reused.
type AnnotationKind uint8

// AnnotationZones is the zone map of the payload that the record points to (docs/format/zonemap.md).
const AnnotationZones AnnotationKind = 1

// ValidateAnnotations checks the arguments of [Log.Annotate].
func ValidateAnnotations(notes []Annotation) error {
	if err := checkCount("annotations", len(notes), MaxAnnotations); err != nil {
		return err
	}
	size := 0
	for i := range notes {
		n := &notes[i]
		if err := ValidatePosition(n.Shard, n.LSN); err != nil {
			return err
		}
		if n.Kind == 0 {
			return fmt.Errorf("%w: shard %v, LSN %d: an annotation without a kind", ErrInvalid, n.Shard, n.LSN)
		}
		if len(n.Data) == 0 || len(n.Data) > MaxAnnotation {
			return fmt.Errorf("%w: shard %v, LSN %d: an annotation has %d bytes, want 1 to %d", ErrInvalid, n.Shard, n.LSN, len(n.Data), MaxAnnotation)
		}
		size += len(n.Data)
	}
	if size > MaxAnnotateBytes {
		return fmt.Errorf("%w: the annotations have over %d bytes: split them", ErrInvalid, MaxAnnotateBytes)
	}
	return nil
}

// ValidateAnnotationRange checks the arguments of [Log.Annotations]. It returns the end of the range and the byte limit that an
// answer applies.
func ValidateAnnotationRange(shard record.ShardID, from, to record.LSN, kind AnnotationKind, maxBytes int) (end record.LSN, limit int, err error) {
	if err := ValidatePosition(shard, from); err != nil {
		return 0, 0, err
	}
	if to < from {
		return 0, 0, fmt.Errorf("%w: shard %v: invalid range from LSN %d to %d", ErrInvalid, shard, from, to)
	}
	if kind == 0 {
		return 0, 0, fmt.Errorf("%w: shard %v: annotations without a kind", ErrInvalid, shard)
	}
	_, limit = ReadLimits(0, maxBytes)
	if to-from > MaxReadRecords {
		to = from + MaxReadRecords
	}
	return to, limit, nil
}
