package rsyslog

import (
	"os"
	"testing"

	"scribe/test/program"
)

func TestMain(m *testing.M) { os.Exit(program.Main(m)) }
