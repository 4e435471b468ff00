package app

import (
	"errors"
	"strings"

	"scribe/internal/base/config"
	"scribe/readproxy"
)

// fieldNames are those that the fields of roles' configurations have in that of a process, by package. A field that is not here follows from
// others, or is a constant, so that it can't be at fault.
var fieldNames = map[string]map[string]string{
	"admission": {"Target": "read_proxy.utilisation", "Least": "read_proxy.queue_least", "Most": "read_proxy.queue_most"},
	"batcher":   {"MemoryBytes": "limits.batch_memory", "FlushFloor": "flush_floor"},
	"collector": {
		"Grace": "collector.grace", "Linger": "collector.linger", "PinLimit": "collector.pin_limit",
		"Interval": "collector.interval", "SweepInterval": "collector.sweep_interval",
		"StoreRequests": "collector.store_requests", "LogRequests": "collector.log_requests", "DeleteBytes": "collector.delete_bytes",
	},
	"deadletter": {"MaxBytes": "spool.dead_letters"},
	"gateway": {
		"MaxQueries": "gateway.max_queries", "MaxFollows": "gateway.max_follows", "QueryMemory": "gateway.query_memory",
		"MaxRows": "gateway.max_rows", "MaxTime": "gateway.max_time", "MaxFollowTime": "gateway.max_follow_time",
		"Heartbeat": "gateway.heartbeat", "StallTimeout": "gateway.stall_timeout",
	},
	"memcached": {
		"Servers": "read_proxy.memcached.servers", "Timeout": "read_proxy.memcached.timeout", "Connections": "read_proxy.memcached.connections",
		"ItemBytes": "read_proxy.memcached.item_bytes", "ValueBytes": "read_proxy.memcached.value_bytes", "Prefix": "read_proxy.memcached.prefix",
	},
	"readproxy": {
		"CacheBytes": "limits.read_cache", "FetchBytes": "limits.read_memory", "RequestBytes": "limits.read_memory",
		"TailAge": "read_proxy.tail_age", "Fetches": "read_proxy.fetches", "FetchTimeout": "read_proxy.fetch_timeout", "PeerTimeout": "read_proxy.peer_timeout",
		"CoalesceBytes": "read_proxy.coalesce_bytes", "CoalesceGap": "read_proxy.coalesce_gap",
		"ReadsPerSecond": "read_proxy.reads_per_second", "ReadBurst": "read_proxy.read_burst",
		"SharedAge": "read_proxy.memcached.shared_age", "FillBytes": "read_proxy.memcached.fill_bytes",
		"Rules[]": "read_proxy.rules[]", "Rules[].Memory": "read_proxy.rules[].memory", "Rules[].Shared": "read_proxy.rules[].memcached",
		"Rules[].SharedAge": "read_proxy.rules[].age",
		"QueueTimeout":      "read_proxy.queue_timeout", "NetworkBytesPerSecond": "read_proxy.network_bytes_per_second",
		"RequestsPerSecond": "read_proxy.requests_per_second", "RequestBurst": "read_proxy.request_burst", "RetryAfter": "read_proxy.retry_after",
	},
	"readstream": {"MaxStreams": "streams.max", "TotalBytes": "streams.memory", "MaxStreamAge": "streams.max_age"},
	"scribed": {
		"MemoryBytes": "limits.write_memory", "BackfillBytesPerSecond": "spool.backfill",
		"Rules[]": "spool.categories[]", "Rules[].WhenFull": "spool.categories[].when_full",
		"Rules[].MaxBytes": "spool.categories[].max_bytes", "Rules[].MaxAge": "spool.categories[].max_age",
	},
	"spool":      {"MaxBytes": "spool.max_bytes", "SegmentBytes": "spool.segment", "BallastBytes": "spool.ballast"},
	"view":       {"Views": "read_proxy.views.most", "Queries": "read_proxy.views.queries", "Expiry": "read_proxy.views.expiry", "Rebalance": "read_proxy.views.rebalance"},
	"writeproxy": {"MemoryBytes": "limits.write_memory"},
}

// roleConfigs are what the roles are made with, if the process has them.
func (c *Config) roleConfigs() map[Role]interface{ Validate() error } {
	agent, write, batch := c.scribed(), c.writeProxy(), c.batcher()
	streams, reads, collect, queries := c.Streams.role(), c.readProxy(), c.Collector.role(), c.Gateway.role()
	return map[Role]interface{ Validate() error }{
		Scribed: &agent, WriteProxy: &write, Batcher: &batch, ReadStream: &streams, ReadProxy: &reads, Collector: &collect, Gateway: &queries,
	}
}

// roleFaults are those that the roles of the process find, under the names of its configuration.
func (c *Config) roleFaults() (faults []error) {
	sized := *c
	// Of these the process itself asks for more than the roles do, and says so.
	l := &sized.Limits
	l.WriteMemory, l.BatchMemory = max(l.WriteMemory, minMemory), max(l.BatchMemory, minMemory)
	l.ReadMemory = max(l.ReadMemory, readproxy.LeastFetchBytes)
	sized.Region = ""
	for role, config := range sized.roleConfigs() {
		if c.Has(role) {
			faults = append(faults, translated(config.Validate())...)
		}
	}
	return faults
}

// translated returns the faults that a role finds in its own configuration, under the names that the process's configuration has for them.
func translated(err error) (faults []error) {
	var joined interface{ Unwrap() []error }
	var fault config.Fault
	switch {
	case errors.As(err, &joined):
		for _, err := range joined.Unwrap() {
			faults = append(faults, translated(err)...)
		}
		return faults
	case errors.As(err, &fault) && nameOf(fault) != "":
		return []error{errors.New(nameOf(fault) + fault.Text)}
	case err != nil:
		return []error{err}
	}
	return nil
}

// nameOf is the name of a fault's field in the configuration of the process. The place in a list is no part of what the table knows.
func nameOf(f config.Fault) string {
	list, rest, listed := strings.Cut(f.Field, "[")
	if !listed {
		return fieldNames[f.Package][f.Field]
	}
	place, field, _ := strings.Cut(rest, "]")
	return strings.Replace(fieldNames[f.Package][list+"[]"+field], "[]", "["+place+"]", 1)
}
