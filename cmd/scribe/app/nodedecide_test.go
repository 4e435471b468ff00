package app

import (
	"errors"
	"slices"
	"strings"
	"testing"

	scribev1 "scribe/proto/scribe/v1"
)

const (
	empty = scribev1.NodeState_NODE_STATE_EMPTY
	begun = scribev1.NodeState_NODE_STATE_BEGUN
	ready = scribev1.NodeState_NODE_STATE_READY
)

// cellOf are three nodes.
func cellOf(t *testing.T) []nodePlace {
	t.Helper()
	nodes, err := parseNodes([]string{"n1=a:100", "n2=b:100", "n3=c:100"})
	if err != nil {
		t.Fatal(err)
	}
	return nodes
}

// answering is the answer of a node that was started with a list.
func answering(p nodePlace, state scribev1.NodeState, cluster []nodePlace) nodeAnswer {
	return nodeAnswer{place: p, node: &scribev1.NodeDescription{Name: p.name, Address: p.address, State: state, Cluster: nodeMessages(cluster)}}
}

// TestDecideBegin: every case of how a node begins.
func TestDecideBegin(t *testing.T) {
	cell := cellOf(t)
	silent := func(p nodePlace) nodeAnswer { return nodeAnswer{place: p, err: errors.New("refused")} }
	others := func(a, b scribev1.NodeState) []nodeAnswer {
		return []nodeAnswer{answering(cell[1], a, cell), answering(cell[2], b, cell)}
	}
	mine := func(change func(*nodeFile)) *nodeFile {
		f := &nodeFile{Version: nodeFileVersion, Name: "n1", Address: "a:100", Token: "t"}
		if change != nil {
			change(f)
		}
		return f
	}
	lost := func(answers []nodeAnswer) []nodeAnswer {
		for _, a := range answers {
			a.node.Lost = true
		}
		return answers
	}
	unlike := []nodePlace{cell[0], cell[1], {"n3", "elsewhere:100"}}
	renamed := answering(cell[1], empty, cell)
	renamed.node.Name = "n7"
	adopting := func(a nodeAnswer, source string) nodeAnswer {
		a.node.Adopts = source
		return a
	}
	for _, c := range []struct {
		name      string
		file      *nodeFile
		hasMember bool
		metadata  bool
		adopt     bool
		adopts    string
		cluster   []nodePlace
		others    []nodeAnswer
		do        beginning
		ask       []nodePlace
		says      []string // in the error, or in what is waited for
	}{
		{name: "a member that is there", file: mine(nil), hasMember: true, others: []nodeAnswer{silent(cell[1]), silent(cell[2])}, do: startMember},
		{name: "a member of another node", file: mine(func(f *nodeFile) { f.Name = "n2" }), hasMember: true, says: []string{"that of node n2, not of n1", "--data"}},
		{name: "a member of nobody", hasMember: true, says: []string{"node is missing", "scribe node replace n1"}},
		{name: "a member that moved", file: mine(func(f *nodeFile) { f.Address = "z:1" }), hasMember: true, says: []string{"z:1", "a:100", "scribe node replace n1=a:100"}},
		{name: "a folder of another node without a member", file: mine(func(f *nodeFile) { f.Name = "n2" }), others: others(empty, empty), says: []string{"that of node n2"}},
		{name: "all are empty", others: others(empty, empty), do: beginCell},
		{name: "some have begun", others: others(begun, empty), do: beginCell},
		{name: "all have begun", file: mine(nil), others: others(begun, begun), do: beginCell},
		{name: "one does not answer", others: []nodeAnswer{answering(cell[1], begun, cell), silent(cell[2])}, do: awaitNodes, says: []string{"n3=c:100 (refused)"}},
		{name: "none answers", others: []nodeAnswer{silent(cell[1]), silent(cell[2])}, do: awaitNodes, says: []string{"n2=b:100", "n3=c:100"}},
		{name: "another list", others: []nodeAnswer{answering(cell[1], empty, unlike), silent(cell[2])}, says: []string{listNodes(cell), listNodes(unlike), "n2"}},
		{name: "another name", others: []nodeAnswer{renamed}, says: []string{"n7", "n2", "b:100"}},
		{name: "one was ready", others: others(empty, ready), do: askMembers, ask: cell[2:]},
		{name: "one was ready, one does not answer", others: []nodeAnswer{silent(cell[1]), answering(cell[2], ready, cell)}, do: askMembers, ask: cell[2:]},
		{name: "one was ready with other nodes", others: []nodeAnswer{answering(cell[1], ready, unlike), silent(cell[2])}, do: askMembers, ask: cell[1:2]},
		{name: "only this one was ready", file: mine(func(f *nodeFile) { f.Ready = true }), others: others(empty, begun), says: []string{"was ready", "scribe recover"}},
		{name: "all were ready, and have nothing", file: mine(func(f *nodeFile) { f.Ready = true }), others: lost(others(ready, ready)), says: []string{"its metadata is lost", "scribe recover"}},
		{name: "all were ready, and one has its member", file: mine(func(f *nodeFile) { f.Ready = true }), others: append(lost(others(ready, ready)[:1]), answering(cell[2], ready, cell)), do: askMembers, ask: cell[2:]},
		{name: "all were ready, one does not answer", file: mine(func(f *nodeFile) { f.Ready = true }), others: append(lost(others(ready, ready)[:1]), silent(cell[2])), do: awaitNodes, says: []string{"n3=c:100"}},
		{name: "the others were ready, and have nothing", others: lost(others(ready, ready)), says: []string{"n2=b:100 was ready", "its metadata is lost", "all nodes an empty --data"}},
		{name: "this one was ready, one does not answer", file: mine(func(f *nodeFile) { f.Ready = true }), others: []nodeAnswer{silent(cell[1])}, do: awaitNodes, says: []string{"n2=b:100"}},
		{name: "metadata that is not adopted", metadata: true, others: others(empty, empty), says: []string{"cell of one process", "--adopt"}},
		{name: "nothing to adopt", adopt: true, others: others(empty, empty), says: []string{"nothing to adopt", "DATA"}},
		{name: "metadata that is adopted", metadata: true, adopt: true, others: others(empty, empty), do: beginCell, adopts: "n1"},
		{name: "metadata that is adopted, and another node knows", metadata: true, adopt: true, others: []nodeAnswer{
			adopting(answering(cell[1], begun, cell), "n1"), answering(cell[2], empty, cell),
		}, do: beginCell, adopts: "n1"},
		{
			name: "another node has begun without what is adopted", metadata: true, adopt: true, others: others(empty, begun),
			says: []string{"n3 has begun a cell without the metadata of node n1", "empty --data"},
		},
		{name: "another node adopts", others: []nodeAnswer{adopting(answering(cell[1], empty, cell), "n2"), answering(cell[2], empty, cell)}, do: beginCell, adopts: "n2"},
		{
			name: "another node adopts, a third has begun", others: []nodeAnswer{adopting(answering(cell[1], begun, cell), "n2"), answering(cell[2], begun, cell)},
			says: []string{"n3 has begun a cell without the metadata of node n2"},
		},
		{name: "two adopt", metadata: true, adopt: true, others: []nodeAnswer{adopting(answering(cell[1], empty, cell), "n2"), answering(cell[2], empty, cell)}, says: []string{"n1", "n2", "to one only"}},
		{name: "two others adopt", others: []nodeAnswer{adopting(answering(cell[1], empty, cell), "n2"), adopting(answering(cell[2], empty, cell), "n3")}, says: []string{"n3", "to one only"}},
		{name: "one that adopts does not answer", file: mine(func(f *nodeFile) { f.Adopts = "n2" }), others: []nodeAnswer{silent(cell[1]), answering(cell[2], empty, cell)}, do: awaitNodes, says: []string{"n2"}},
		{name: "metadata for a cell that is there", metadata: true, adopt: true, others: others(empty, ready), says: []string{"n3=c:100 is there already", "only a new cell"}},
		{name: "a new node of a cell that adopted", others: []nodeAnswer{adopting(answering(cell[1], ready, cell), "n2"), silent(cell[2])}, do: askMembers, ask: cell[1:2]},
		{name: "a member that adopted", file: mine(func(f *nodeFile) { f.Adopts = "n1" }), hasMember: true, metadata: true, adopt: true, do: startMember},
		{name: "a member that adopted, without the flag", file: mine(func(f *nodeFile) { f.Adopts = "n1" }), hasMember: true, metadata: true, do: startMember},
		{name: "a member that began with nothing", file: mine(nil), hasMember: true, metadata: true, adopt: true, says: []string{"began without", "--adopt"}},
		{name: "a member that was detached", file: mine(func(f *nodeFile) { f.Detached = true }), hasMember: true, metadata: true, says: []string{"was detached", "without --node"}},
		{name: "one node", cluster: cell[:1], do: beginCell},
		{name: "one node that lost its member", cluster: cell[:1], file: mine(func(f *nodeFile) { f.Ready = true }), says: []string{"was ready"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			own := nodeFacts{place: cell[0], cluster: cell, data: "DATA", file: c.file, hasMember: c.hasMember, hasMetadata: c.metadata, adopt: c.adopt}
			if c.cluster != nil {
				own.cluster = c.cluster
			}
			got, err := decideBegin(own, c.others)
			text := got.waiting
			if err != nil {
				text = err.Error()
			}
			if (err == nil) != (c.do != 0) || err == nil && got.do != c.do || !slices.Equal(got.ask, c.ask) || got.adopts != c.adopts {
				t.Fatalf("%+v, %v: want %d, asking %v", got, err, c.do, c.ask)
			}
			for _, w := range c.says {
				if !strings.Contains(text, w) {
					t.Errorf("%q does not name %q", text, w)
				}
			}
		})
	}
}

// TestDecideJoin: a node without data joins where it has a place and never was; else it says which command makes it one.
func TestDecideJoin(t *testing.T) {
	cell := cellOf(t)
	member := func(name, address string, started bool) *scribev1.Node {
		return &scribev1.Node{Place: &scribev1.NodeAddress{Name: name, Address: address}, Started: started}
	}
	rest := []*scribev1.Node{member("n2", "b:100", true), member("n3", "c:100", true)}
	for _, c := range []struct {
		name    string
		members []*scribev1.Node
		says    string // "" joins
	}{
		{"its place waits for it", append(rest, member("n1", "a:100", false)), ""},
		{"a place without a name", append(rest, member("", "a:100", false)), ""},
		{"its data is gone", append(rest, member("n1", "a:100", true)), "scribe node replace n1 --server http://b:100"},
		{"it has no place", rest, "scribe node add n1=a:100 --server http://b:100"},
		{"it was elsewhere", append(rest, member("n1", "z:100", true)), "scribe node replace n1=a:100 --server http://b:100"},
		{"another node is there", append(rest, member("n9", "a:100", true)), "node n9, not n1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := decideJoin(nodeFacts{place: cell[0], cluster: cell, data: "DATA"}, cell[1], slices.Clone(c.members))
			if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v: want %q", err, c.says)
			}
		})
	}
}
