package main

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/types/known/durationpb"

	"scribe/internal/base/units"
	scribev1 "scribe/proto/scribe/v1"
)

// cachePolicy is a flag for how read proxies cache a category: default, or what is said of their memory, of memcached, and of the age up
// to which memcached is used.
type cachePolicy struct{ policy *scribev1.CachePolicy }

var cacheModes = map[string]scribev1.CacheMode{
	"always": scribev1.CacheMode_CACHE_MODE_ALWAYS,
	"never":  scribev1.CacheMode_CACHE_MODE_NEVER,
	"reused": scribev1.CacheMode_CACHE_MODE_REUSED,
}

// String implements pflag.Value.
func (p *cachePolicy) String() string { return cachePolicyText(p.policy) }

// Set implements pflag.Value.
func (p *cachePolicy) Set(s string) error {
	if s == "default" {
		p.policy = nil
		return nil
	}
	policy := &scribev1.CachePolicy{}
	for part := range strings.SplitSeq(s, ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(part), "=")
		if err := setCache(policy, name, value); err != nil {
			return err
		}
	}
	p.policy = policy
	return nil
}

func setCache(policy *scribev1.CachePolicy, name, value string) error {
	switch name {
	case "memory", "memcached":
		mode, ok := cacheModes[value]
		switch {
		case !ok:
			return fmt.Errorf("%s: invalid value %q: want always, never or reused", name, value)
		case name == "memcached":
			policy.Memcached = mode
		default:
			policy.Memory = mode
		}
	case "age":
		age, err := units.ParseDuration(value)
		if err != nil {
			return fmt.Errorf("age: %w", err)
		}
		policy.MemcachedAge = durationpb.New(age.Std())
	default:
		return fmt.Errorf("invalid cache policy %q: want memory=, memcached= or age=, or default alone", name)
	}
	return nil
}

// Type implements pflag.Value.
func (p *cachePolicy) Type() string { return "policy" }

// cachePolicyText is a policy on the command line.
func cachePolicyText(p *scribev1.CachePolicy) string {
	var parts []string
	for _, tier := range []struct {
		name string
		mode scribev1.CacheMode
	}{{"memory", p.GetMemory()}, {"memcached", p.GetMemcached()}} {
		if tier.mode != scribev1.CacheMode_CACHE_MODE_UNSPECIFIED {
			parts = append(parts, tier.name+"="+strings.ToLower(strings.TrimPrefix(tier.mode.String(), "CACHE_MODE_")))
		}
	}
	if p.GetMemcachedAge() != nil {
		parts = append(parts, "age="+units.Duration(p.GetMemcachedAge().AsDuration()).String())
	}
	if len(parts) == 0 {
		return "default"
	}
	return strings.Join(parts, ",")
}
