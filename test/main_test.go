package test

import (
	"flag"
	"os"
	"testing"

	"scribe/test/program"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == groupMember {
		if err := program.UseClientFiles(); err != nil {
			panic(err)
		}
		os.Exit(runMember(os.Args[2:])) // the test binary is a member of a group
	}
	flag.Parse()
	// Tests of retention wait a minute for messages to expire; they may do so together, whatever the number of processors.
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	os.Exit(program.Suite{Raced: []string{"^(TestRealInput|TestConcurrentProducers|TestManyShards)$/^(direct_calls|in-memory_HTTP)$"}, LeftOut: leftOut}.Main(m))
}

// Why tests are left out where cells are secured.
const (
	ownSecurity = "it makes certificates and tokens of its own, and is the same in every run"
	benchAlone  = "the command's cell is in its own process, which serves with the certificate of the command: a client's can't"
	ownFiles    = "it runs files that are shipped, whose cells are open"
)

// leftOut are the tests that are not run where cells are secured. A test stands here if its cell is open, or secured by itself, by what it is about.
var leftOut = map[string]string{
	"TestAuditTrail":            ownSecurity,
	"TestAuditDataAccess":       ownSecurity,
	"TestBundle":                ownSecurity,
	"TestCallerBound":           ownSecurity,
	"TestClosedOverRestarts":    ownSecurity,
	"TestGrantCommands":         ownSecurity,
	"TestNodesReplaceAuthority": ownSecurity,
	"TestRevocationUnderLoad":   ownSecurity,
	"TestAgentLendsItsRights":   ownSecurity,
	"TestSecure":                ownSecurity,
	"TestSecureNodes":           ownSecurity,
	"TestTailOverHTTPRights":    ownSecurity,
	"TestTenantQuota":           ownSecurity,
	"TestTenants":               ownSecurity,
	"TestTokens":                ownSecurity,

	"TestBench":        benchAlone,
	"TestBenchProfile": benchAlone,

	"TestRegions": "tickets are of one cell: the read proxy of another region can't check them (docs/security.md, Tickets)",

	"TestCompose":      ownFiles,
	"TestComposeNodes": ownFiles,
	"TestUnits":        ownFiles,
}

// suggestsNames reports whether errors name categories like the one that does not exist. In a closed cell none does, whoever asks.
func suggestsNames() bool { return !program.Secured() }

// TestLeftOut: what is left out where cells are secured exists, and is left out for a reason.
func TestLeftOut(t *testing.T) { program.CheckLeftOut(t, leftOut) }

// What the tests use most.
const waitLimit = program.WaitLimit

var (
	launch = program.Launch
	serve  = program.Serve
	cli    = program.Run
	ok     = program.OK
)
