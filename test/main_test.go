package test

import (
	"os"
	"testing"

	"scribe/test/program"
)

func TestMain(m *testing.M) { os.Exit(program.Main(m)) }

// What the tests use most.
const patience = program.Patience

var (
	launch = program.Launch
	serve  = program.Serve
	cli    = program.Run
	ok     = program.OK
)
