package columns

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"scribe/columnar/divide"
	"scribe/consumer"
	"scribe/consumer/internal/payload"
	"scribe/internal/format/placement"
	"scribe/internal/format/record"
	"scribe/internal/transport/layouts"
	scribev1 "scribe/proto/scribe/v1"
)

// MaxKeys bounds the values of [Keys].
const MaxKeys = maxValues

// ErrKeys matches the error of an iteration whose [Keys] can't be looked for in the category: it does not place messages by key or
// field, or a value has several spellings.
var ErrKeys = errors.New("consumer: the keys can't be looked for")

// Keys makes [consumer.Consumer.Records] yield only the messages of some values of what the category places messages by: their key, or
// the text or integer in a field of their content. It reads only the logical shards in which they can be, by all layouts that the
// category has and had, and shards that are added while it runs; all shards where that is not known, since the category placed
// messages by something else before. A consumer that follows a category with an ordering window, or a repeatable one, reads all
// shards, too, since a shard that is added would come late.
//
// Integers are equal however they are written: 42 finds 42, 42.0 and "42". Together with [Where], messages must satisfy both. Keep the
// values the same when a consumer continues from a checkpoint: other shards are read from their beginning. A category that places
// messages by neither, and a value that can't be found, end the iteration with [ErrKeys]. Members of a group read all shards.
func Keys(values ...string) consumer.Option {
	return option(func(e *columnOptions) { e.keys = append(slices.Clone(e.keys), values...) })
}

// keySelection selects the messages of some values. It is immutable.
type keySelection struct {
	layout *placement.Layout // which says what the values are of; its number of shards does not count
	values [][]byte
	wanted map[string]bool
}

// bindKeys returns the selection of values in the consumer's category.
func bindKeys(ctx context.Context, c *consumer.Consumer, values []string) (*keySelection, error) {
	category, err := c.Describe(ctx)
	if err != nil {
		return nil, err
	}
	k := &keySelection{layout: layouts.Current(category), wanted: make(map[string]bool, len(values))}
	if k.layout == nil {
		return nil, fmt.Errorf("%w: category %s places messages neither by key nor by field, so a key may be in any shard: create it with --shard-by key or field:PATH, or read all of it", ErrKeys, c.Category())
	}
	for _, v := range values {
		if k.layout.Kind() == placement.ByField && !placement.IsCanonical(v) {
			return nil, fmt.Errorf("%w: invalid value %q of %s: want a text or an integer", ErrKeys, v, k.layout)
		}
		if !k.wanted[v] {
			k.wanted[v] = true
			k.values = append(k.values, []byte(v))
		}
	}
	return k, nil
}

// shards returns the logical shards of a category in which the values may be; ok is false if that is any.
func (k *keySelection) shards(c *scribev1.Category) (shards []uint32, ok bool) {
	for _, v := range k.values {
		some, known := layouts.ShardsOf(c, v, k.layout.PlacesLike)
		if !known {
			return nil, false
		}
		shards = append(shards, some...)
	}
	slices.Sort(shards)
	return slices.Compact(shards), true
}

// match selects the messages of a payload, of those that are selected already.
func (k *keySelection) match(p *payload.Payload, skip uint32) error {
	selected, err := k.find(p.Frames, skip)
	if err != nil {
		return damage(p, "frames", -1, err)
	}
	if p.Filtered {
		selected = slices.DeleteFunc(selected, func(n uint32) bool {
			_, found := slices.BinarySearch(p.Matches, n)
			return !found
		})
	}
	p.Filtered, p.Matches = true, selected
	p.ResultBytes = int64(4 * cap(selected))
	return nil
}

// find returns the messages with the values in frames, ascending. It leaves out frames of the first skip messages.
func (k *keySelection) find(frames []byte, skip uint32) (found []uint32, err error) {
	var (
		d       record.Decoder
		r       record.Record
		scratch placement.Scratch
		first   uint32
	)
	for f, err := range record.Split(frames) {
		if err != nil {
			return nil, err
		}
		end := first + uint32(f.Count) //nolint:gosec // of a frame
		switch {
		case end <= skip:
		case f.Encoding == record.EncodingArrow:
			if found, err = k.findRows(found, &f, first); err != nil {
				return nil, err
			}
		default:
			if _, err := d.Reset(f.Bytes); err != nil {
				return nil, err
			}
			for n := first; d.Next(&r); n++ {
				if value, ok := k.layout.Value(r.Key, r.Payload, &scratch); ok && k.wanted[string(value)] {
					found = append(found, n)
				}
			}
			if err := d.Err(); err != nil {
				return nil, err
			}
		}
		first = end
	}
	return found, nil
}

// findRows adds the rows with the values in a frame of columns, whose first row has a number. Rows of columns have no key.
func (k *keySelection) findRows(found []uint32, f *record.Frame, first uint32) ([]uint32, error) {
	if k.layout.Kind() != placement.ByField {
		return found, nil
	}
	if _, err := record.Check(f.Bytes); err != nil {
		return found, err
	}
	rows, err := divide.Find(f.Body(), k.layout.Path(), func(value []byte) bool { return k.wanted[string(value)] })
	if err != nil {
		return found, nil //nolint:nilerr // no batch, or of a type that places no row: nothing in it has a value
	}
	for _, row := range rows {
		found = append(found, first+uint32(row)) //nolint:gosec // of a frame
	}
	return found, nil
}

// intersect returns the shards that are in both lists.
func intersect(a, b []uint32) []uint32 {
	return slices.DeleteFunc(slices.Clone(a), func(n uint32) bool { return !slices.Contains(b, n) })
}
