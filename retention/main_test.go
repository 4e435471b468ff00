package retention

import (
	"flag"
	"testing"

	"go.uber.org/goleak"

	"scribe/internal/testkit/testsize"
)

func TestMain(m *testing.M) {
	flag.Parse()
	// A world has few goroutines at a time: under the race detector a few worlds are enough. rapid divides by five with -short.
	if checks := flag.Lookup("rapid.checks"); testsize.Test(false, false, true) && checks.Value.String() == checks.DefValue {
		_ = checks.Value.Set("25")
	}
	goleak.VerifyTestMain(m)
}
