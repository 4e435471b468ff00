package test

import (
	"os"
	"testing"

	"scribe/test/program"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == groupMember {
		os.Exit(runMember(os.Args[2:])) // the test binary is a member of a group
	}
	os.Exit(program.Main(m))
}

// What the tests use most.
const waitLimit = program.WaitLimit

var (
	launch = program.Launch
	serve  = program.Serve
	cli    = program.Run
	ok     = program.OK
)
