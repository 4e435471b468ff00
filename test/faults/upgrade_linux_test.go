package faults

import (
	"testing"

	"scribe/test/program"
)

// TestUpgrade starts a cell of three nodes of an older build, and upgrades one node after another under load; it takes one back to the older build, and forward again. The
// nodes of both builds are one cell all the time: as in TestNodes nothing is lost, and their folders are equal in the end.
func TestUpgrade(t *testing.T) {
	older := program.Older(t)
	n := startNodes(t, seedOf(t), older)
	n.recovered("the start of the older build")
	for _, x := range n.rng.Perm(len(n.list)) {
		n.changeBuild(n.list[x], program.Binary())
	}
	// One goes back while its replica leads, another one while its etcd does, in one step or two.
	for _, x := range n.chooseLeaders(true, true) {
		n.changeBuild(x, older)
		n.changeBuild(x, program.Binary())
	}
	n.end()
}

// changeBuild ends a node in an orderly way, and starts it with another build.
func (n *nodes) changeBuild(x *node, build string) {
	n.Helper()
	n.stopTogether(x)
	x.build = build
	n.startAgain(x)
	what := x.name + " runs this build"
	if build != program.Binary() {
		what = x.name + " runs the older build"
	}
	n.recovered(what)
}
