package bench

import (
	"math"
	"strings"
	"testing"
	"time"
)

// TestPrices: a gigabyte costs its requests once, and its stored bytes each month.
func TestPrices(t *testing.T) {
	r := FarReport{Scenario: FarMany, Bytes: 2e9, Requests: StoreRequests{Put: 1000, Post: 500, List: 500, Get: 9000, Head: 1000, Delete: 7000}}
	r.fillRates(measuredSpan{wall: time.Second, grown: metricValues{"scribe_batcher_blobs_total": 10, "scribe_batcher_blob_bytes_total": 4e8}})
	if want := (2000*0.005/1000 + 10_000*0.0004/1000) / 2; math.Abs(r.RequestDollars-want) > 1e-9 {
		t.Errorf("requests cost %g dollars a GB instead of %g", r.RequestDollars, want)
	}
	if want := 0.2 * 0.023; math.Abs(r.StorageDollars-want) > 1e-9 {
		t.Errorf("storage costs %g dollars a GB and month instead of %g", r.StorageDollars, want)
	}
	var table strings.Builder
	if err := FarTable(&table, []FarReport{r}); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(table.String(), "0.00700") || !strings.Contains(table.String(), "0.00460") {
		t.Errorf("the prices are not in the table:\n%s", table.String())
	}
}
