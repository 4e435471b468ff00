package consumer_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"google.golang.org/protobuf/types/known/durationpb"

	"scribe/columnar"
	"scribe/consumer"
	"scribe/consumer/columns"
	"scribe/internal/format/placement"
	"scribe/internal/format/record"
	"scribe/internal/transport/layouts"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// placedCell is a cell whose category places messages.
type placedCell struct {
	*cell
	category *scribev1.Category // of which all but the name is used
}

// newPlacedCell returns a cell whose category has four shards and the schema of the rows.
func newPlacedCell(t *testing.T, by scribev1.ShardBy, field string) *placedCell {
	c := &placedCell{cell: newCell(), category: &scribev1.Category{Shards: 4, ShardBy: by, ShardField: field}}
	c.schema = historyOf(t)
	c.describe = func(out *scribev1.Category) {
		c.mu.Lock()
		defer c.mu.Unlock()
		out.Shards, out.ShardBy, out.ShardField, out.FormerLayouts = c.category.GetShards(), c.category.GetShardBy(), c.category.GetShardField(), c.category.GetFormerLayouts()
		out.LayoutsForgotten, out.OrderingWindow, out.Repeatable = c.category.GetLayoutsForgotten(), c.category.GetOrderingWindow(), c.category.GetRepeatable()
	}
	return c
}

// grow adds shards.
func (c *placedCell) grow(shards uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.category.FormerLayouts = append(c.category.FormerLayouts, &scribev1.ShardLayout{By: c.category.GetShardBy(), Field: c.category.GetShardField(), Shards: c.category.GetShards()})
	c.category.Shards = shards
}

// write stores a message with a key and the field s, in the shard of both (they are the same), and returns the shard.
func (c *placedCell) write(value string, n int) uint32 {
	c.mu.Lock()
	shard := layouts.Current(c.category).ShardOf([]byte(value))
	c.mu.Unlock()
	c.addFrames(shardID(uint16(shard), 1), keyedFrame(shard, value, n))
	return shard
}

func keyedFrame(shard uint32, value string, n int) []byte {
	var b record.Builder
	err := b.Reset(nil, record.Envelope{Category: categoryName, Shard: shard, BaseTime: 1000})
	if err == nil {
		err = b.Append(&record.Message{Key: []byte(value), Payload: fmt.Appendf(nil, `{"s":%q,"n":%d}`, value, n)})
	}
	frame, ferr := b.Finish()
	if err := errors.Join(err, ferr); err != nil {
		panic(err)
	}
	return frame
}

// fill stores a message of each of 20 values, and, in all shards, messages of the value a that no layout puts there: who reads more than
// the shards of a value shows it.
func (c *placedCell) fill() (of map[string]uint32) {
	of = map[string]uint32{}
	for i := range 20 {
		value := string(rune('a' + i))
		of[value] = c.write(value, i)
	}
	for shard := range uint32(4) {
		if shard != of["a"] {
			c.addFrames(shardID(uint16(shard), 1), keyedFrame(shard, "a", 100+int(shard)))
		}
	}
	return of
}

// asked returns the logical shards that the last stream asked for.
func (c *placedCell) asked() []uint32 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.starts[len(c.starts)-1].GetLogicalShards()
}

const (
	byKey   = scribev1.ShardBy_SHARD_BY_KEY
	byField = scribev1.ShardBy_SHARD_BY_FIELD
)

// TestReadsFewShards: a filter and a choice of keys read the shards in which a match can be, and no others: no stream asks for them and
// no payload of them is fetched.
func TestReadsFewShards(t *testing.T) {
	for _, tc := range []struct {
		name   string
		by     scribev1.ShardBy
		change func(*scribev1.Category)
		opts   []consumer.Option
		values []string // whose shards are read; nil = all
		wide   bool     // a reader of all shards gets the misplaced messages, too
	}{
		{"a filter by field", byField, nil, []consumer.Option{columns.Where("s = 'a'")}, []string{"a"}, false},
		{"a filter by key", byKey, nil, []consumer.Option{columns.Where("_key = 'a'")}, []string{"a"}, false},
		{"a filter of several", byField, nil, []consumer.Option{columns.Where("s IN ('a', 'b') AND n < 200")}, []string{"a", "b"}, false},
		{"another filter", byField, nil, []consumer.Option{columns.Where("n = 0 OR s = 'a'")}, nil, true},
		{"a filter that reads all", byField, nil, []consumer.Option{columns.Where("s = 'a'"), columns.WithAllShards()}, nil, true},
		{"keys of a field", byField, nil, []consumer.Option{columns.Keys("a")}, []string{"a"}, false},
		{"keys", byKey, nil, []consumer.Option{columns.Keys("a", "b"), columns.Keys("c", "a")}, []string{"a", "b", "c"}, false},
		{"keys read few in any case", byKey, nil, []consumer.Option{columns.Keys("a"), columns.WithAllShards()}, []string{"a"}, false},
		{"keys and a filter", byField, nil, []consumer.Option{columns.Keys("a", "b"), columns.Where("s = 'a' AND n >= 0")}, []string{"a"}, false},
		{"keys and a filter of other keys", byField, nil, []consumer.Option{columns.Keys("a"), columns.Where("n >= 0")}, []string{"a"}, false},
		{
			"keys and former layouts", byKey, func(c *scribev1.Category) { c.FormerLayouts = []*scribev1.ShardLayout{{By: byKey, Shards: 3}} },
			[]consumer.Option{columns.Keys("a")},
			[]string{"a"},
			false,
		},
		{
			"keys of what was placed otherwise", byKey, func(c *scribev1.Category) { c.FormerLayouts = []*scribev1.ShardLayout{{Shards: 3}} },
			[]consumer.Option{columns.Keys("a")},
			nil, true,
		},
		{"keys of forgotten layouts", byKey, func(c *scribev1.Category) { c.LayoutsForgotten = true }, []consumer.Option{columns.Keys("a")}, nil, true},
		{"a window", byKey, nil, []consumer.Option{columns.Keys("a"), consumer.WithWindow(0)}, []string{"a"}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newPlacedCell(t, tc.by, map[scribev1.ShardBy]string{byField: "s"}[tc.by])
				c.fill()
				if tc.change != nil {
					tc.change(c.category)
				}
				r := open(t, c.cell, append(tc.opts, consumer.WithControl(c), consumer.WithUntilEnd())...)
				got, err := read(t.Context(), r, 0)
				if err != nil {
					t.Fatal(err)
				}
				var shards []uint32
				for _, v := range tc.values {
					some, _ := layouts.ShardsOf(c.category, []byte(v), func(*placement.Layout) bool { return true })
					shards = append(shards, some...)
				}
				slices.Sort(shards)
				if shards = slices.Compact(shards); !slices.Equal(c.asked(), shards) {
					t.Errorf("shards %v were asked for, want %v", c.asked(), shards)
				}
				chosen, of := r.ShardsRead()
				if !slices.Equal(chosen, shards) || (of > 0) != (shards != nil) {
					t.Errorf("says that it reads shards %v of %d, want %v", chosen, of, shards)
				}
				pointers := 0
				for id, l := range c.logs {
					if shards == nil || slices.Contains(shards, uint32(id.Logical())) {
						pointers += len(l.entries)
					}
				}
				if c.fetched != pointers {
					t.Errorf("%d payloads were fetched, the shards have %d", c.fetched, pointers)
				}
				misplaced := 0
				for _, text := range got {
					var n int
					if _, err := fmt.Sscanf(text, `{"s":"a","n":%d}`, &n); err == nil && n >= 100 {
						misplaced++
					}
				}
				if tc.wide != (misplaced == 3) || len(got) == 0 {
					t.Errorf("got %q", got)
				}
			})
		})
	}
}

// TestKeysSelect: which messages a choice of keys yields.
func TestKeysSelect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newPlacedCell(t, byField, "a.b")
		layout := layouts.Current(c.category)
		add := func(payloads ...string) {
			shard := layout.ShardOf([]byte("42"))
			c.addFrames(shardID(uint16(shard), 1), frame(shard, payloads...))
		}
		add(`{"a":{"b":42}}`, `{"a":{"b":43}}`, `{"a":{"b":"42"}}`, `{"a":{"b":4.2e1}}`, `{"a":{}}`, `no JSON`, `{"a":{"b":null}}`, `{"a.b":42}`)
		add(`{"a":{"b":1}}`)
		add(`{"a":{"b":0}}`, `{"x":[],"a":{"b":42.0}}`)
		opts := []consumer.Option{consumer.WithControl(c), consumer.WithUntilEnd()}
		r := open(t, c.cell, append(opts, columns.Keys("42"))...)
		got, err := read(t.Context(), r, 2)
		want(t, got, err, `{"a":{"b":42}}`, `{"a":{"b":"42"}}`)
		got, err = read(t.Context(), open(t, c.cell, append(opts, columns.Keys("42"), from(t, r.Checkpoint()))...), 0)
		want(t, got, err, `{"a":{"b":4.2e1}}`, `{"x":[],"a":{"b":42.0}}`)
		got, err = read(t.Context(), open(t, c.cell, append(opts, columns.Keys("42", "x"))...), 0)
		if len(got) != 4 || err != nil {
			t.Errorf("%q, %v", got, err)
		}
		for _, wrong := range []string{"42.0", "NaN", "{}", "1e3"} {
			if _, err := read(t.Context(), open(t, c.cell, append(opts, columns.Keys("42", wrong))...), 0); !errors.Is(err, columns.ErrKeys) {
				t.Errorf("%s: %v", wrong, err)
			}
		}
		for _, by := range []scribev1.ShardBy{0, scribev1.ShardBy_SHARD_BY_STICKY, scribev1.ShardBy_SHARD_BY_EXPLICIT} {
			c.category.ShardBy = by
			if _, err := read(t.Context(), open(t, c.cell, append(opts, columns.Keys("42"))...), 0); !errors.Is(err, columns.ErrKeys) {
				t.Errorf("by %v: %v", by, err)
			}
		}
		if _, err := consumer.New("", categoryName, columns.Keys(make([]string, columns.MaxKeys+1)...)); err == nil {
			t.Error("too many keys are taken")
		}
	})
}

// TestKeysAndFilter: a message must satisfy both.
func TestKeysAndFilter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newPlacedCell(t, byKey, "")
		for n := range 4 {
			c.addFrames(shardID(1, 1), keyedFrame(1, "a", n), keyedFrame(1, "b", n), keyedFrame(1, "a", 10+n))
		}
		c.category.LayoutsForgotten = true
		r := open(t, c.cell, consumer.WithControl(c), consumer.WithUntilEnd(), columns.Keys("a"), columns.Where("n IN (1, 13)"))
		got, err := read(t.Context(), r, 0)
		want(t, got, err, `{"s":"a","n":1}`, `{"s":"a","n":13}`)
	})
}

// TestKeysOfColumns: rows of columns are no messages, but only those with the value count.
func TestKeysOfColumns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, by := range []scribev1.ShardBy{byKey, byField} {
			c := newPlacedCell(t, by, map[scribev1.ShardBy]string{byField: "s"}[by])
			c.category.LayoutsForgotten = true
			rows, _, err := array.RecordFromJSON(memory.DefaultAllocator, arrow.NewSchema([]arrow.Field{{Name: "s", Type: arrow.BinaryTypes.String}}, nil), strings.NewReader(`[{"s":"x"},{"s":"y"}]`))
			if err != nil {
				t.Fatal(err)
			}
			body, err := columnar.EncodeIPC(nil, rows)
			if err != nil {
				t.Fatal(err)
			}
			columnsFrame, err := record.AppendArrowFrame(nil, record.Envelope{Category: categoryName, Shard: 1, BaseTime: 1000}, 2, body)
			if err != nil {
				t.Fatal(err)
			}
			c.addFrames(shardID(1, 1), keyedFrame(1, "b", 1), keyedFrame(1, "b", 2), columnsFrame, keyedFrame(1, "y", 3))
			opts := []consumer.Option{consumer.WithControl(c), consumer.WithUntilEnd()}
			got, err := read(t.Context(), open(t, c.cell, append(opts, columns.Keys("b"))...), 0)
			want(t, got, err, `{"s":"b","n":1}`, `{"s":"b","n":2}`)
			got, err = read(t.Context(), open(t, c.cell, append(opts, columns.Keys("y"))...), 0)
			if by == byKey {
				want(t, got, err, `{"s":"y","n":3}`)
			} else if !errors.Is(err, consumer.ErrColumnar) || len(got) != 0 {
				t.Errorf("%q, %v", got, err)
			}
		}
	})
}

// TestKeysFollow: a consumer that follows a key reads its shards, and those that become its shards: everything once. A server that does not
// know the new shards yet is asked again.
func TestKeysFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newPlacedCell(t, byKey, "")
		first := c.fill()["b"]
		refused := 0
		c.onStream = func(n int, m *scribev1.StreamResponse) ([]*scribev1.StreamResponse, error) {
			if n == 2 || n == 3 {
				refused++
				return nil, rpc.Errorf(scribev1.Reason_REASON_UNKNOWN_SHARD, "category %q has 4 logical shards", categoryName)
			}
			return []*scribev1.StreamResponse{m}, nil
		}
		r := open(t, c.cell, consumer.WithControl(c), columns.Keys("b"))
		var got []string
		wrote := 0
		began := time.Now()
		for rec, err := range r.Records(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, string(rec.Payload))
			switch len(got) {
			case 1:
				if !slices.Equal(c.asked(), []uint32{first}) {
					t.Fatalf("shards %v were asked for, the key is in %d", c.asked(), first)
				}
				c.grow(4 * 37) // by which every shard but the first gets another number
				for range 3 {
					wrote++
					if c.write("b", wrote) == first {
						t.Fatal("the key has the same shard")
					}
				}
				c.addFrames(shardID(uint16(first), 1), keyedFrame(first, "b", 50)) // by a producer that does not know
			case 5:
				if took := time.Since(began); took > 8*time.Second {
					t.Errorf("it took %v to read shards that were added", took)
				}
			}
			if len(got) == 5 {
				break
			}
		}
		slices.Sort(got)
		if fmt.Sprint(got) != `[{"s":"b","n":1} {"s":"b","n":1} {"s":"b","n":2} {"s":"b","n":3} {"s":"b","n":50}]` || refused != 2 {
			t.Errorf("got %q, refused %d times", got, refused)
		}
		if shards, of := r.ShardsRead(); len(shards) != 2 || of != 4*37 {
			t.Errorf("reads shards %v of %d", shards, of)
		}
		// It goes on, and a second consumer does from its checkpoint.
		c.onStream = nil
		c.write("b", 60)
		more, err := read(t.Context(), r, 1)
		want(t, more, err, `{"s":"b","n":60}`)
		c.write("b", 61)
		more, err = read(t.Context(), open(t, c.cell, consumer.WithControl(c), columns.Keys("b"), from(t, r.Checkpoint())), 1)
		want(t, more, err, `{"s":"b","n":61}`)
	})
}

// TestFollowsAllShards: where a shard that is added late would break a promise, a consumer that follows reads all of them.
func TestFollowsAllShards(t *testing.T) {
	for name, change := range map[string]func(*scribev1.Category) []consumer.Option{
		"few": func(*scribev1.Category) []consumer.Option { return nil },
		"unbounded window": func(*scribev1.Category) []consumer.Option {
			return []consumer.Option{consumer.WithWindow(consumer.Unbounded)}
		},
		"window": func(*scribev1.Category) []consumer.Option { return []consumer.Option{consumer.WithWindow(time.Second)} },
		"category's window": func(c *scribev1.Category) []consumer.Option {
			c.OrderingWindow = durationpb.New(time.Second)
			return nil
		},
		"one order": func(c *scribev1.Category) []consumer.Option {
			c.Repeatable = scribev1.Repeatability_REPEATABILITY_BOUND
			return nil
		},
		"an end to come": func(*scribev1.Category) []consumer.Option {
			return []consumer.Option{columns.WithUntil(time.Now().Add(time.Hour))}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newPlacedCell(t, byKey, "")
				c.fill()
				r := open(t, c.cell, append(change(c.category), consumer.WithControl(c), columns.Keys("b"))...)
				got, err := read(t.Context(), r, 1)
				want(t, got, err, `{"s":"b","n":1}`)
				few := name == "few" || name == "unbounded window"
				if few != (len(c.asked()) == 1) {
					t.Errorf("shards %v were asked for", c.asked())
				}
			})
		})
	}
}

// TestIterationsChooseShards: each iteration reads the shards that the category has when it begins, also a query's.
func TestIterationsChooseShards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newPlacedCell(t, byField, "s")
		c.fill()
		r := open(t, c.cell, consumer.WithControl(c), consumer.WithUntilEnd(), columns.Where("s = 'b'"))
		got, err := read(t.Context(), r, 0)
		want(t, got, err, `{"s":"b","n":1}`)
		q, err := columns.NewQuery(t.Context(), "", `SELECT n FROM "web.access" WHERE s = 'b'`, consumer.WithServices(c, c), consumer.WithControl(c))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = q.Close() }()
		count := func() (rows int64) {
			for batch, err := range q.Batches(t.Context()) {
				if err != nil {
					t.Fatal(err)
				}
				rows += batch.NumRows()
			}
			return rows
		}
		if n := count(); n != 1 {
			t.Errorf("%d rows", n)
		}
		c.grow(4 * 37)
		c.write("b", 2)
		got, err = read(t.Context(), r, 0)
		want(t, got, err, `{"s":"b","n":2}`)
		if n := count(); n != 1 {
			t.Errorf("%d rows since shards were added", n)
		}
	})
}

// TestSequencedShards: of a sequenced category the shards are chosen when the end of an iteration is known: its log holds messages of
// shards that were added until then, and they do not come again.
func TestSequencedShards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newPlacedCell(t, byKey, "")
		c.category.Repeatable = scribev1.Repeatability_REPEATABILITY_SEQUENCED
		s := newSequencedCell(c.cell)
		write := func(n int) {
			c.mu.Lock()
			shard := layouts.Current(c.category).ShardOf([]byte("b"))
			c.mu.Unlock()
			for _, value := range []string{"other", "b"} {
				at := shard
				if value == "other" {
					at = (shard + 1) % 4
				}
				s.sequence(uint16(at), keyedFrame(at, value, n))
			}
		}
		write(1)
		described, describe := 0, c.describe
		c.describe = func(out *scribev1.Category) {
			describe(out)
			if described++; described == 2 { // the first is of the keys
				c.grow(4 * 37)
				write(2)
			}
		}
		r := open(t, c.cell, consumer.WithControl(c), consumer.WithUntilEnd(), columns.Keys("b"))
		got, err := read(t.Context(), r, 0)
		want(t, got, err, `{"s":"b","n":1}`, `{"s":"b","n":2}`)
		if c.fetched != 2 {
			t.Errorf("%d payloads were fetched", c.fetched)
		}
		described = 2
		write(3)
		got, err = read(t.Context(), open(t, c.cell, consumer.WithControl(c), columns.Keys("b"), from(t, r.Checkpoint())), 1)
		want(t, got, err, `{"s":"b","n":3}`)
	})
}
