package main

import (
	"fmt"
	"strings"

	"scribe/internal/format/placement"
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
	switch rule {
	case scribev1.ShardBy_SHARD_BY_UNSPECIFIED:
		return scribev1.EnumName(scribev1.ShardBy_SHARD_BY_EXPLICIT)
	case scribev1.ShardBy_SHARD_BY_FIELD:
		return scribev1.EnumName(rule) + ":" + field
	}
	return scribev1.EnumName(rule)
}

// formerLayoutTexts are the layouts that a category had, the last one last.
func formerLayoutTexts(c *scribev1.Category) (texts []string) {
	if c.GetLayoutsForgotten() {
		texts = append(texts, "others, forgotten")
	}
	for _, l := range c.GetFormerLayouts() {
		texts = append(texts, fmt.Sprintf("%s, %d shards", shardByText(l.GetBy(), l.GetField()), l.GetShards()))
	}
	return texts
}
