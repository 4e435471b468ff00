package readproxy

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"scribe/internal/base/config"
	"scribe/readproxy/memcached"
)

// describer is a registry that describes what is registered.
type describer struct {
	prometheus.Registerer
	descs chan *prometheus.Desc
}

func (d describer) Register(c prometheus.Collector) error {
	c.Describe(d.descs)
	return nil
}

func (d describer) Unregister(prometheus.Collector) bool { return true }

// Every metric stands in the guide for operators, and every one that stands there exists.
func TestMetricsAreDocumented(t *testing.T) {
	h := newHarness(t, func(c *Config) {
		m := config.Defaults[memcached.Config]()
		m.Servers = []string{"127.0.0.1:1"}
		c.Memcached = &m
	})
	// Those of the clients of other regions are the process's, which knows the regions.
	exist := map[string]bool{"region_retries_total": true, "region_retries_denied_total": true}
	descs := make(chan *prometheus.Desc, 1000)
	if err := h.server.metrics.set.Register(describer{descs: descs}); err != nil {
		t.Fatal(err)
	}
	close(descs)
	name := regexp.MustCompile(`fqName: "scribe_readproxy_([a-z_]+)"`)
	for d := range descs {
		m := name.FindStringSubmatch(d.String())
		if m == nil {
			t.Fatalf("%v has another name", d)
		}
		exist[m[1]] = true
	}
	guide, err := os.ReadFile("../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(guide), "\n### Metrics of a read proxy\n")
	section, _, _ := strings.Cut(rest, "\n## ")
	documented := map[string]bool{}
	for line := range strings.Lines(section) {
		if first, _, ok := strings.Cut(strings.TrimPrefix(line, "| "), " | "); ok && strings.HasPrefix(line, "| `") {
			first, _, _ = strings.Cut(first, " by ") // what follows are labels
			for _, m := range regexp.MustCompile("`([a-z_]+)`").FindAllStringSubmatch(first, -1) {
				documented[m[1]] = true
			}
		}
	}
	for n := range exist {
		if !documented[n] {
			t.Errorf("%s is not in the guide", n)
		}
	}
	for n := range documented {
		if !exist[n] {
			t.Errorf("the guide has %s, which does not exist", n)
		}
	}
}
