package main

import (
	"cmp"
	"fmt"
	"strings"

	"scribe/internal/format/placement"
	"scribe/internal/transport/layouts"
	scribev1 "scribe/proto/scribe/v1"
)

// shardBy is a flag for how messages find their logical shard: sticky, key, field:PATH or explicit.
type shardBy struct {
	rule  scribev1.ShardBy
	field string
}

// String implements pflag.Value.
func (s *shardBy) String() string { return shardByText(s.rule, s.field) }

// Set implements pflag.Value.
func (s *shardBy) Set(text string) error {
	name, field, named := strings.Cut(text, ":")
	rule, err := scribev1.ParseEnum[scribev1.ShardBy](name)
	switch {
	case err != nil:
		return fmt.Errorf("invalid value %q: want sticky, key, field:PATH (such as field:client_ip or field:user.id) or explicit", text)
	case rule == scribev1.ShardBy_SHARD_BY_FIELD:
		if _, err := placement.ParsePath(field); err != nil {
			return fmt.Errorf("%w; want field:PATH, such as field:client_ip or field:user.id", err)
		}
	case named:
		return fmt.Errorf("invalid value %q: only field takes a path", text)
	}
	s.rule, s.field = rule, field
	return nil
}

// Type implements pflag.Value.
func (s *shardBy) Type() string { return "rule" }

// shardByText is a rule as the command line has it. Categories from before there were rules have none, which is explicit.
func shardByText(rule scribev1.ShardBy, field string) string {
	name := scribev1.EnumName(cmp.Or(rule, scribev1.ShardBy_SHARD_BY_EXPLICIT))
	if rule == scribev1.ShardBy_SHARD_BY_FIELD {
		name += ":" + field
	}
	return name
}

// shardsOfValue returns the logical shards that may hold a key, or a value of the field.
func shardsOfValue(c *scribev1.Category, value string) ([]uint32, error) {
	if !placement.IsCanonical(value) && c.GetShardBy() == scribev1.ShardBy_SHARD_BY_FIELD {
		return nil, fmt.Errorf("invalid value %q for --value: want a text or an integer", value)
	}
	shards, ok := layouts.ShardsOf(c, []byte(value), func(l *placement.Layout) bool { return l.PlacesLike(layouts.Current(c)) })
	if !ok {
		return nil, fmt.Errorf("--value: the value may be in any logical shard of %s: it is, or was, placed by %s", c.GetName(),
			strings.Join(append(formerLayoutTexts(c), shardByText(c.GetShardBy(), c.GetShardField())), "; "))
	}
	return shards, nil
}

// formerLayoutTexts are the layouts that a category had, the last one last.
func formerLayoutTexts(c *scribev1.Category) (texts []string) {
	if c.GetLayoutsForgotten() {
		texts = append(texts, "others, forgotten")
	}
	for _, l := range c.GetFormerLayouts() {
		shards := fmt.Sprintf("%d shards", l.GetShards())
		if n := len(l.GetRanges()); n > 0 {
			shards = fmt.Sprintf("%d shards in %d ranges", l.GetShards(), n)
		}
		texts = append(texts, shardByText(l.GetBy(), l.GetField())+", "+shards)
	}
	return texts
}
