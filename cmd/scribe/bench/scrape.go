package bench

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// metricValues are a process's metrics: the sum over the labels by name, and each sample of one label by name{label="value"}.
type metricValues map[string]float64

// scrapeMetrics reads a process's /metrics.
func scrapeMetrics(ctx context.Context, server string) (metricValues, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(server, "/")+"/metrics", http.NoBody)
	if err != nil {
		return nil, err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s/metrics: %s", server, res.Status)
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(res.Body)
	if err != nil {
		return nil, fmt.Errorf("%s/metrics: %w", server, err)
	}
	out := metricValues{}
	for name, f := range families {
		for _, m := range f.GetMetric() {
			out[name] += metricValue(m)
			if l := m.GetLabel(); len(l) == 1 {
				out[fmt.Sprintf("%s{%s=%q}", name, l[0].GetName(), l[0].GetValue())] += metricValue(m)
			}
		}
	}
	return out, nil
}

func metricValue(m *dto.Metric) float64 {
	switch {
	case m.Counter != nil:
		return m.GetCounter().GetValue()
	case m.Gauge != nil:
		return m.GetGauge().GetValue()
	default:
		return 0
	}
}

// growthSince is what each counter has grown by.
func (c metricValues) growthSince(before metricValues) metricValues {
	out := make(metricValues, len(c))
	for name, v := range c {
		out[name] = v - before[name]
	}
	return out
}

// measuredSpan is what a piece of work took.
type measuredSpan struct {
	wall, cpu time.Duration
	grown     metricValues // of the cell
}

// measureSpan measures what run takes, of the process and by the cell's metrics.
func measureSpan(ctx context.Context, server string, run func() error) (s measuredSpan, err error) {
	before, err := scrapeMetrics(ctx, server)
	if err != nil {
		return s, err
	}
	begin, cpu := time.Now(), cpuTime()
	err = run()
	s.wall, s.cpu = time.Since(begin), cpuTime()-cpu
	after, serr := scrapeMetrics(ctx, server)
	s.grown = after.growthSince(before)
	return s, errors.Join(err, serr)
}
