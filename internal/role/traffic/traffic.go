// Package traffic counts what goes through a process by category, in bounded memory: exact for the busiest categories, summed for the rest. Roles
// count once for each request, or for each run of a request's frames that are of one category; never for each message.
package traffic

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"scribe/internal/base/metrics"
)

// Bounds of a Counter.
const (
	// MaxCategories is how many categories are counted for themselves, about 300 bytes each. When one more comes, one of the idlest is added to
	// the rest.
	MaxCategories = 10_000
	// Labelled is how many of them are exported by name.
	Labelled = 20
	// memory is the time constant of the averages by which the busiest are known.
	memory = 30 * time.Second
	// relabelEvery is the least time between two choices of those that are exported by name.
	relabelEvery = 10 * time.Second
	// candidates is how many categories are looked at to find an idle one.
	candidates = 8
)

// Category is a category as traffic knows it.
type Category struct {
	Name, Owner string
	// Quota is in bytes a second; 0 = none.
	Quota uint64
}

// Counts are what was counted of a category. They only grow.
type Counts struct {
	// Of writes: what was acknowledged; messages that failed; those of them that were refused over a quota; and messages that sampling left out.
	WrittenBytes, WrittenMessages, FailedMessages, OverQuotaMessages, SampledMessages uint64
	// Those of OverQuotaMessages that were over the quota of their owner, and of a prefix of their name.
	OverOwnerQuotaMessages, OverPrefixQuotaMessages uint64
	// Of reads: payloads that were answered, with their bytes as sent and their messages; and payloads that could not be served.
	ReadBytes, ReadPayloads, ReadMessages, FailedPayloads uint64
}

// Plus returns the sum.
func (c Counts) Plus(o Counts) Counts {
	return Counts{
		c.WrittenBytes + o.WrittenBytes, c.WrittenMessages + o.WrittenMessages, c.FailedMessages + o.FailedMessages,
		c.OverQuotaMessages + o.OverQuotaMessages, c.SampledMessages + o.SampledMessages,
		c.OverOwnerQuotaMessages + o.OverOwnerQuotaMessages, c.OverPrefixQuotaMessages + o.OverPrefixQuotaMessages,
		c.ReadBytes + o.ReadBytes, c.ReadPayloads + o.ReadPayloads, c.ReadMessages + o.ReadMessages, c.FailedPayloads + o.FailedPayloads,
	}
}

// weight is how much the counts make a category busy: its bytes, and something for each message and payload, so that refused ones count too.
func (c Counts) weight() float64 {
	return float64(c.WrittenBytes+c.ReadBytes) + 100*float64(c.WrittenMessages+c.FailedMessages+c.SampledMessages+c.ReadPayloads+c.FailedPayloads)
}

// CategoryCounts are the counts of one category.
type CategoryCounts struct {
	Category
	Counts
}

// Counter counts by category. It is safe for concurrent use.
type Counter struct {
	now func() time.Duration
	set *metrics.Set
	mu  struct {
		sync.Mutex
		byName map[string]*categoryEntry
		// evicted is the sum of the categories that are not in byName any more.
		evicted Counts
		// unnamed is what is exported as the rest: what was counted of categories while they were not labelled. It only grows.
		unnamed  Counts
		labelled time.Duration // when the labels were given
	}
}

// categoryEntry is what is known of a category. The Counter's mutex guards it.
type categoryEntry struct {
	category Category
	counts   Counts
	// exported is the part of counts that was counted while the category was labelled.
	exported Counts
	label    bool
	// weight is an average that decays with memory; at is when it was brought up to date.
	weight float64
	at     time.Duration
}

// NewCounter returns a counter whose metrics are registered with r, if it is not nil.
func NewCounter(r prometheus.Registerer) (*Counter, error) {
	started := time.Now()
	c := &Counter{now: func() time.Duration { return time.Since(started) }}
	c.mu.byName = make(map[string]*categoryEntry)
	c.set = newMetrics(c)
	if err := c.set.Register(r); err != nil {
		return nil, err
	}
	return c, nil
}

// Close unregisters the metrics.
func (c *Counter) Close() { c.set.Unregister() }

// Add counts. A nil Counter counts nothing.
func (c *Counter) Add(category Category, a Counts) {
	if c == nil {
		return
	}
	now := c.now()
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.mu.byName[category.Name]
	if e == nil {
		if len(c.mu.byName) >= MaxCategories {
			c.evictIdle(now)
		}
		e = &categoryEntry{at: now, label: len(c.mu.byName) < Labelled} // of few categories all are exported, from the first count on
		c.mu.byName[category.Name] = e
	}
	e.category = category
	e.counts = e.counts.Plus(a)
	e.decayTo(now)
	e.weight += a.weight()
	if e.label {
		e.exported = e.exported.Plus(a)
	} else {
		c.mu.unnamed = c.mu.unnamed.Plus(a)
	}
}

func (e *categoryEntry) decayTo(now time.Duration) {
	if passed := now - e.at; passed > 0 {
		e.weight *= math.Exp(-passed.Seconds() / memory.Seconds())
		e.at = now
	}
}

// evictIdle adds the idlest of a few random categories to the rest. The mutex is held.
func (c *Counter) evictIdle(now time.Duration) {
	var idlest *categoryEntry
	looks := candidates
	for _, e := range c.mu.byName {
		if e.decayTo(now); idlest == nil || e.weight < idlest.weight {
			idlest = e
		}
		if looks--; looks == 0 {
			break
		}
	}
	c.mu.evicted = c.mu.evicted.Plus(idlest.counts)
	delete(c.mu.byName, idlest.category.Name)
}

// Busiest returns the counts of at most limit categories whose names begin with a prefix, the busiest first, and the sum of the others.
func (c *Counter) Busiest(limit int, prefix string) (busiest []CategoryCounts, rest Counts) {
	now := c.now()
	c.mu.Lock()
	defer c.mu.Unlock()
	entries := make([]*categoryEntry, 0, len(c.mu.byName))
	for name, e := range c.mu.byName {
		if strings.HasPrefix(name, prefix) {
			entries = append(entries, e)
		}
	}
	sortBusiest(entries, now)
	for i, e := range entries {
		if i < limit {
			busiest = append(busiest, CategoryCounts{e.category, e.counts})
		} else {
			rest = rest.Plus(e.counts)
		}
	}
	if prefix == "" {
		rest = rest.Plus(c.mu.evicted)
	}
	return busiest, rest
}

// sortBusiest sorts entries, the busiest first.
func sortBusiest(entries []*categoryEntry, now time.Duration) {
	for _, e := range entries {
		e.decayTo(now)
	}
	slices.SortFunc(entries, func(a, b *categoryEntry) int {
		return cmp.Or(cmp.Compare(b.weight, a.weight), cmp.Compare(a.category.Name, b.category.Name))
	})
}

// relabel gives the labels to the busiest categories, not too often. The mutex is held.
func (c *Counter) relabel(now time.Duration) {
	if now-c.mu.labelled < relabelEvery {
		return
	}
	c.mu.labelled = now
	entries := make([]*categoryEntry, 0, len(c.mu.byName))
	for _, e := range c.mu.byName {
		entries = append(entries, e)
	}
	sortBusiest(entries, now)
	for i, e := range entries {
		e.label = i < Labelled
	}
}

// restLabel is the label of everything that has no label of its own. No category can be called so.
const restLabel = "(rest)"

func newMetrics(c *Counter) *metrics.Set {
	set := metrics.NewSet("scribe_category_")
	var read func(metrics.Send)
	v := set.Snapshot(func(send metrics.Send) { read(send) })
	declare := func(name, help string) metrics.Value {
		return v.Counter(name, help+" Busy categories by name, all others as "+restLabel+".", "category", "owner")
	}
	var (
		writtenBytes    = declare("written_bytes_total", "Bytes of frames that the write proxy acknowledged.")
		writtenMessages = declare("written_messages_total", "Messages that the write proxy acknowledged.")
		failedMessages  = declare("failed_messages_total", "Messages that the write proxy did not store.")
		overQuota       = declare("over_quota_messages_total", "Messages that were refused since their category, its owner or its prefix is over its quota.")
		sampled         = declare("sampled_messages_total", "Messages that sampling left out.")
		readBytes       = declare("read_bytes_total", "Bytes of payloads that the read proxy answered.")
		readMessages    = declare("read_messages_total", "Messages in these payloads.")
		failedPayloads  = declare("failed_payloads_total", "Payloads that the read proxy could not serve.")
		counted         = v.Gauge("counted", "Categories that are counted for themselves.")
	)
	read = func(send metrics.Send) {
		now := c.now()
		c.mu.Lock()
		defer c.mu.Unlock()
		sendCounts := func(category, owner string, a Counts) {
			for _, m := range []struct {
				value metrics.Value
				count uint64
			}{
				{writtenBytes, a.WrittenBytes},
				{writtenMessages, a.WrittenMessages},
				{failedMessages, a.FailedMessages},
				{overQuota, a.OverQuotaMessages},
				{sampled, a.SampledMessages},
				{readBytes, a.ReadBytes},
				{readMessages, a.ReadMessages},
				{failedPayloads, a.FailedPayloads},
			} {
				send(m.value, float64(m.count), category, owner)
			}
		}
		for name, e := range c.mu.byName {
			if e.label {
				sendCounts(name, strings.ToValidUTF8(e.category.Owner, "?"), e.exported)
			}
		}
		sendCounts(restLabel, "", c.mu.unnamed)
		send(counted, float64(len(c.mu.byName)))
		c.relabel(now) // afterwards: what a category had when it loses its label was in a scrape
	}
	return set
}
