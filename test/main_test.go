package test

import (
	"flag"
	"os"
	"testing"

	"scribe/test/program"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == groupMember {
		os.Exit(runMember(os.Args[2:])) // the test binary is a member of a group
	}
	flag.Parse()
	// Tests of retention wait a minute for messages to expire; they may do so together, whatever the number of processors.
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	os.Exit(program.Main(m, "^(TestRealInput|TestConcurrentProducers|TestManyShards)$/^(direct_calls|in-memory_HTTP)$"))
}

// What the tests use most.
const waitLimit = program.WaitLimit

var (
	launch = program.Launch
	serve  = program.Serve
	cli    = program.Run
	ok     = program.OK
)
