package sim

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"scribe/cmd/scribe/app"
	"scribe/consumer"
	"scribe/consumer/columns"
	"scribe/internal/format/placement"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/test/history"
)

// keysPlan is how a category places messages. Its writers' messages have keys.
type keysPlan struct {
	// Field is whether they are placed by a field of their content, which is JSON, and not by their key.
	Field bool
	Count int
}

// keyReaderPlan is a consumer of one key, with many lives.
type keyReaderPlan struct {
	Name, Category, Key string
	// Where is whether it selects by a predicate, and not by columns.Keys.
	Where    bool
	Lifetime int
	Via      []string
}

// faultGrow adds logical shards to a category. It is no fault. With growSpooled, agents answer for all that is written to the category, and
// it is exactly_once: of its messages that are only spooled it keeps the order, too.
const (
	faultGrow   = "grow"
	growSpooled = "grow-spooled"
)

// keyField is the field that messages are placed by, and keySchema the schema that has it as the column key.
const (
	keyField  = "user.key"
	keySchema = "format: json\nfields:\n  - {name: key, type: string, path: user.key}\n"
)

// drawKeyed adds, in half of the seeds or always, a category that places messages by key or field, which gets more shards, with writers of
// several kinds and readers of single keys.
func (p *plan) drawKeyed(rng *rand.Rand, always string) {
	spooled := isDrawn(always, growSpooled)
	if rng.IntN(2) == 0 && !spooled && !isDrawn(always, faultGrow) && !isDrawn(always, faultSplit) {
		return
	}
	c := categoryPlan{
		Name: "keyed", Shards: 1 + rng.Uint32N(3), Delivery: pick(rng, []string{"best_effort", "at_least_once", "at_least_once", "exactly_once"}),
		Order: pick(rng, []string{"none", "none", "bound", "sequenced"}), Keys: &keysPlan{Field: rng.IntN(2) == 0, Count: 2 + rng.IntN(6)},
	}
	if spooled {
		c.Delivery = "exactly_once"
	}
	// A frame that was placed by a layout which a recovery has lost is placed again, which a server can't do with numbered messages.
	if slices.ContainsFunc(p.Faults, func(f faultPlan) bool { return f.Kind == faultLostDisk || f.Kind == faultLostControl }) && c.Delivery == "exactly_once" {
		c.Delivery = "at_least_once"
	}
	p.Categories = append(slices.Clone(p.Categories), c)
	proxies, agents := p.with(app.WriteProxy), p.agents()
	for i := range 2 + rng.IntN(2) {
		w := writerPlan{
			Name: fmt.Sprintf("keywriter%d", i), Category: c.Name, Level: "committed", Kind: pick(rng, []string{"batch", "async", "async", "stream", "atomic", "publish"}),
			Via: pick(rng, proxies), Patient: c.Delivery == "exactly_once" || rng.IntN(4) > 0, Pace: pick(rng, []time.Duration{200 * time.Millisecond, time.Second, 3 * time.Second}),
			Size: pick(rng, []int{50, 300}),
		}
		switch {
		case spooled:
			w.Via, w.Level = pick(rng, agents), "spooled"
		case rng.IntN(3) == 0:
			w.Via, w.Level = pick(rng, agents), pick(rng, []string{"spooled", "committed", "committed"})
		}
		switch {
		case w.Kind == "publish" && c.Delivery == "exactly_once": // it repeats nothing
			w.Kind = "async"
		case w.Kind == "stream":
			w.Pace = 5 * time.Second
		}
		p.Writers = append(p.Writers, w)
	}
	via := p.with(app.ReadStream)
	if c.Order != "sequenced" {
		p.Readers = append(p.Readers, readerPlan{Name: "keyed reader", Category: c.Name, Window: pick(rng, []time.Duration{-1, 0, 0}), Lifetime: pick(rng, []int{0, 200}), Via: via})
	}
	for i := range 2 {
		p.KeyReaders = append(p.KeyReaders, keyReaderPlan{
			Name: fmt.Sprintf("key reader%d", i), Category: c.Name, Key: c.key(rng.IntN(c.Keys.Count)), Where: rng.IntN(3) == 0, Lifetime: pick(rng, []int{0, 30}), Via: via,
		})
	}
	shards := c.Shards
	times := make([]time.Duration, 1+rng.IntN(3))
	for i := range times {
		times[i] = time.Duration(rng.Int64N(int64(p.Length)))
	}
	for _, at := range slices.Sorted(slices.Values(times)) {
		shards += 1 + rng.Uint32N(shards+1)
		p.Faults = append(p.Faults, faultPlan{Kind: faultGrow, At: at, Other: c.Name, Shards: shards})
	}
}

// key returns the n-th key of the category: as placement has it.
func (c *categoryPlan) key(n int) string {
	if n%2 == 1 && c.Keys.Field {
		return fmt.Sprint(1700 + n)
	}
	return fmt.Sprintf("key-%d", n)
}

// keyOf returns the key of a message, "" in a category without keys.
func (w *world) keyOf(c *categoryPlan, id history.ID) string {
	if c.Keys == nil {
		return ""
	}
	return c.key(rngOf(w.plan.Seed, "key of "+id.String()).IntN(c.Keys.Count))
}

// fieldPayload makes a payload an object with the key in its field. Numbers are written in several ways.
func fieldPayload(payload []byte, key string, rng *rand.Rand) []byte {
	value := `"` + key + `"`
	if key[0] != 'k' {
		value = pick(rng, []string{value, key, key + ".0", key + "0e-1"})
	}
	return history.JSONPayload(payload, `"user":{"key":`+value+`}`)
}

// shardBy returns the rule of a category.
func (c *categoryPlan) shardBy() (by scribev1.ShardBy, field string) {
	switch {
	case c.Keys == nil:
		return scribev1.ShardBy_SHARD_BY_EXPLICIT, ""
	case c.Keys.Field:
		return scribev1.ShardBy_SHARD_BY_FIELD, keyField
	}
	return scribev1.ShardBy_SHARD_BY_KEY, ""
}

// byKey returns whether messages of a key may be in a shard, nil in a category without keys: by the layouts that were asked for so far.
// Shards that come from one by splits count as that one: what a reader of a key finds is compared exactly.
func (w *world) byKey(c *categoryPlan) func(key string, shard uint32) bool {
	if c.Keys == nil {
		return nil
	}
	return func(key string, shard uint32) bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return slices.ContainsFunc(w.shards[c.Name], func(n uint32) bool {
			return placement.Shard(placement.Hash([]byte(key)), n) == shard%scribev1.ShardFamily
		})
	}
}

// noteShards notes a number of shards that a category has, or may have.
func (w *world) noteShards(category string, shards uint32) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.shards == nil {
		w.shards = map[string][]uint32{}
	}
	w.shards[category] = append(w.shards[category], shards)
}

// askedShards returns the highest number of shards that was asked for.
func (w *world) askedShards(category string) uint32 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Max(w.shards[category])
}

// growCategory adds shards to a category, as soon as the control plane can be reached.
func (w *world) growCategory(name string, shards uint32) {
	w.noteShards(name, shards)
	w.changeCategory("shards of "+name, func(ctx context.Context, control rpc.ControlService) error {
		return w.setShards(ctx, control, name)
	})
}

// setShards gives a category its rule and all the shards that it got so far, if it has them not.
func (w *world) setShards(ctx context.Context, control rpc.ControlService, name string) error {
	res, err := control.GetCategory(ctx, &scribev1.GetCategoryRequest{Name: name})
	if err != nil {
		return err
	}
	shards := w.askedShards(name)
	by, field := w.category(name).shardBy()
	have := res.GetCategory()
	// A recovery knows shards by their messages, and may take one for the last that is not.
	if shards = max(shards, have.GetShards()); have.GetShardBy() == by && have.GetShards() == shards {
		return nil
	}
	_, err = control.UpdateCategory(ctx, &scribev1.UpdateCategoryRequest{Name: name, Revision: have.GetRevision(), Shards: &shards, ShardBy: &by, ShardField: &field})
	return err
}

// publish writes messages as any program can, without the library: a server places them.
func (x *writer) publish(ctx context.Context) {
	msgs := x.source(1 + x.rng.IntN(3))
	req := &scribev1.PublishRequest{Category: x.plan.Category, Ack: scribev1.AckLevel_ACK_LEVEL_COMMITTED}
	if x.plan.Level != "committed" {
		req.Ack = scribev1.AckLevel_ACK_LEVEL_SPOOLED
	}
	for _, m := range x.messages(msgs) {
		req.Messages = append(req.Messages, &scribev1.PublishMessage{Content: &scribev1.PublishMessage_Payload{Payload: m.Payload}, Key: m.Key})
	}
	a := x.w.history.Begin(x.plan.Category, 0, msgs...)
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	_, err := rpc.NewWriteClient(x.c.transport, x.w.process(x.plan.Via).url()).Publish(ctx, req)
	if err != nil { // a part of them may be stored
		x.unknown.Add(int64(len(msgs)))
		return
	}
	x.tellAll(a, len(msgs), nil)
}

// keyReader reads the messages of one key, dies, and goes on from its checkpoint.
type keyReader struct {
	w    *world
	plan keyReaderPlan
	mu   sync.Mutex
	// seen counts what it got over all lives, kept what it had got at the saved checkpoint.
	seen, kept map[history.ID]int
	saved      string
}

func (k *keyReader) run(ctx context.Context) {
	c, rng, random := k.w.newClient(), rngOf(k.w.plan.Seed, k.plan.Name), k.w.randomOf(k.plan.Name)
	for life := 0; ctx.Err() == nil; life++ {
		options := k.w.keyOptions(k.w.category(k.plan.Category), k.plan.Key, k.plan.Where)
		options = append(options, consumer.WithHTTPClient(c.transport.HTTPClient()), consumer.WithRequestTimeout(10*time.Second), consumer.WithRetryTimeout(0),
			consumer.WithLogger(k.w.logger(k.plan.Name)), consumer.WithRandom(random))
		err := k.liveOnce(ctx, rng, k.w.process(k.plan.Via[life%len(k.plan.Via)]).url(), options)
		switch {
		case err == nil || ctx.Err() != nil:
		case k.saved == "" && k.w.recovery.hasLost(k.plan.Category):
			sleep(ctx, time.Second)
		default:
			k.w.violation("%s: %v", k.plan.Name, err)
			return
		}
	}
}

// keyOptions are the options of a consumer of one key.
func (w *world) keyOptions(c *categoryPlan, key string, where bool) []consumer.Option {
	switch {
	case !where:
		return []consumer.Option{columns.Keys(key)}
	case c.Keys.Field: // as a column has numbers: the way in which they are written
		if key[0] != 'k' {
			return []consumer.Option{columns.Keys(key)}
		}
		return []consumer.Option{columns.Where("key = '" + key + "'")}
	}
	return []consumer.Option{columns.Where("_key = '" + key + "'")}
}

// liveOnce reads until the reader dies, or returns the error that ended the reading.
func (k *keyReader) liveOnce(ctx context.Context, rng *rand.Rand, server string, options []consumer.Option) error {
	start := consumer.Earliest()
	if k.saved != "" {
		var err error
		if start, err = consumer.Checkpoint(k.saved); err != nil {
			return err
		}
	}
	reader, err := consumer.New(server, k.plan.Category, append(options, consumer.WithStart(start))...)
	if err != nil {
		return err
	}
	defer func() { _ = reader.Close() }()
	k.mu.Lock()
	k.seen = maps.Clone(k.kept)
	k.mu.Unlock()
	for r, err := range reader.Records(ctx) {
		if errors.Is(err, consumer.ErrGap) && k.w.recovery.count.Load() > 0 {
			continue // the category was sequenced anew
		}
		if err != nil {
			return err
		}
		id, err := history.ParseID(r.Payload)
		if err != nil {
			return err
		}
		k.mu.Lock()
		k.seen[id]++
		k.mu.Unlock()
		if k.plan.Lifetime > 0 && rng.IntN(5) == 0 {
			k.saved = reader.Checkpoint()
			k.mu.Lock()
			k.kept = maps.Clone(k.seen)
			k.mu.Unlock()
		}
		if k.plan.Lifetime > 0 && rng.IntN(k.plan.Lifetime) == 0 && !k.w.healed.Load() {
			return nil
		}
	}
	return nil
}

// compare says how what the reader got differs from the messages of its key in a reading; lacking is whether only some have not come yet.
func (k *keyReader) compare(r *history.Reading) (difference string, lacking bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	want := map[history.ID]int{}
	for _, id := range k.w.ofKey(k.plan.Category, k.plan.Key, r) {
		want[id]++
	}
	return k.w.compareCounts(k.w.category(k.plan.Category), k.seen, want)
}

// ofKey returns the messages of a key in a reading, in order.
func (w *world) ofKey(category, key string, r *history.Reading) []history.ID {
	c := w.category(category)
	return slices.DeleteFunc(r.IDs(), func(id history.ID) bool { return w.keyOf(c, id) != key })
}

// verifyKeys waits until the readers of single keys have every message of theirs, and reads each key alone, in order.
func (w *world) verifyKeys(healed time.Time, readings map[string]*history.Reading) {
	for _, k := range w.keyReaders {
		whole := readings[k.plan.Category]
		w.await(k.plan.Name+" has everything", healed, func() bool { _, lacking := k.compare(whole); return !lacking })
		if difference, _ := k.compare(whole); difference != "" {
			w.violation("%s of %s: %s", k.plan.Name, k.plan.Key, difference)
		}
	}
	for i := range w.plan.Categories {
		c := &w.plan.Categories[i]
		if c.Keys == nil {
			continue
		}
		for n := range c.Keys.Count {
			key, via := c.key(n), w.plan.with(app.ReadStream)[n%2]
			ctx, cancel := context.WithTimeout(context.Background(), liveness)
			r, err := w.read(ctx, c.Name, via, w.keyOptions(c, key, n%4 == 2)...)
			cancel()
			if err != nil {
				w.violation("read key %s of %s through %s: %v", key, c.Name, via, err)
				continue
			}
			if got, want := r.IDs(), w.ofKey(c.Name, key, readings[c.Name]); !slices.Equal(got, want) {
				w.violation("invariant 1: a reader of key %s of %s through %s gets %d messages, lost are some of %d, or they are reordered: %v, want %v", key, c.Name, via, len(got), len(want), got, want)
			}
		}
	}
}
