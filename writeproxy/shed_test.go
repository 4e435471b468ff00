package writeproxy

import (
	"slices"
	"testing"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus"

	"scribe/internal/base/config"
	scribev1 "scribe/proto/scribe/v1"
)

// TestShedding: when memory is short, frames of the lowest priority are refused with a hint, beside others of the same request that pass;
// without higher ones nothing gives way.
func TestShedding(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		registry := prometheus.NewRegistry()
		c := newCell(t, config.Defaults[Config](), 1, func(d *Deps) { d.Registerer = registry })
		c.catalog.limit("low", 0, block).Priority = scribev1.Priority_PRIORITY_LOW
		c.catalog.limit("critical", 0, block).Priority = scribev1.Priority_PRIORITY_CRITICAL
		low, normal, critical := sized(t, "low", 0, 600), makeFrame(t, "least", 0, false, "normal"), sized(t, "critical", 0, 600)
		full := c.writes.Limit() * 9 / 10
		if err := c.writes.Charge(full); err != nil {
			t.Fatal(err)
		}
		if got := reasons(c.write(low)); got[0] != 0 {
			t.Errorf("without any others: %v", got)
		}
		if got := reasons(c.write(critical, normal, low, normal, low)); !slices.Equal(got, []scribev1.Reason{0, overloaded, overloaded, overloaded, overloaded}) {
			t.Errorf("at nine tenths: %v", got)
		}
		c.writes.Release(full / 9)
		results := c.write(critical, normal, low)
		if got := reasons(results); !slices.Equal(got, []scribev1.Reason{0, 0, overloaded}) {
			t.Errorf("at eight tenths: %v", got)
		}
		if results[2].GetError().GetRetryAfter().AsDuration() <= 0 {
			t.Error("no hint")
		}
		c.writes.Release(full - full/9)
		if got := reasons(c.write(low, normal, critical)); !slices.Equal(got, []scribev1.Reason{0, 0, 0}) {
			t.Errorf("with memory: %v", got)
		}
		if got := gathered(t, registry)["scribe_writeproxy_shed_bytes_total"]; got < 3*600 {
			t.Errorf("%v bytes are counted as shed", got)
		}
	})
}
