package app

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	scribev1 "scribe/proto/scribe/v1"
)

// beginning is what a node does at its start.
type beginning int

const (
	// startMember starts the member of etcd that the folder has.
	startMember beginning = iota + 1
	// beginCell begins a new cell with the nodes of the list.
	beginCell
	// askMembers asks a node of a cell that was ready for its members: decideJoin says what follows.
	askMembers
	// awaitNodes waits for others, and asks again.
	awaitNodes
)

// nodeFacts are what a node knows of itself before it begins.
type nodeFacts struct {
	place nodePlace
	// secure means that the nodes serve with TLS.
	secure bool
	// cluster are all nodes as they were given to it, by name.
	cluster []nodePlace
	data    string    // for errors
	file    *nodeFile // nil if it never began
	// hasMember means that the folder has a member of etcd.
	hasMember bool
	// hasMetadata means that the folder has metadata logs or categories, and adopt that they are to be those of the nodes.
	hasMetadata, adopt bool
}

// nodeAnswer is the answer of another node.
type nodeAnswer struct {
	place nodePlace
	node  *scribev1.NodeDescription // nil if it did not answer
	err   error
}

// decision is what a node does next.
type decision struct {
	do beginning
	// ask are the nodes to ask for members, with askMembers.
	ask []nodePlace
	// waiting says what it waits for, with awaitNodes.
	waiting string
	// adopts is the node whose folder has what the cell begins with, with beginCell; empty if it begins with nothing.
	adopts string
}

// decideBegin says how a node begins. A node whose data is lost must not begin as if it were new: it voted and acknowledged, and without its
// memory a majority could forget what was acknowledged. So only nodes all of which say that their cell was never ready begin one.
func decideBegin(own nodeFacts, others []nodeAnswer) (decision, error) {
	if own.hasMember {
		return decision{do: startMember}, cmp.Or(own.checkFolder(), own.checkMetadata())
	}
	if f := own.file; f != nil && f.Name != own.place.name {
		return decision{}, own.otherNameError()
	}
	if err := own.checkMetadata(); err != nil {
		return decision{}, err
	}
	var ready, lost []nodePlace
	var silent []string
	for _, o := range others {
		if o.node == nil {
			silent = append(silent, fmt.Sprintf("%s (%v)", o.place, o.err))
			continue
		}
		if err := own.checkAnswer(o); err != nil {
			return decision{}, err
		}
		switch {
		case o.node.GetLost():
			lost = append(lost, o.place)
		case o.node.GetState() == scribev1.NodeState_NODE_STATE_READY:
			ready = append(ready, o.place)
		}
	}
	source, err := own.sourceOf(others)
	switch {
	case err != nil:
		return decision{}, err
	case len(ready) > 0 && source == own.place.name:
		return decision{}, fmt.Errorf("node %s is to bring what is in %s along, but the cell of node %s is there already, and has metadata of its own: only a new cell can begin with it",
			own.place.name, own.data, ready[0])
	case len(ready) > 0:
		return decision{do: askMembers, ask: ready}, nil
	case len(silent) > 0:
		return decision{do: awaitNodes, waiting: "the other nodes: this one is empty, and can't tell whether the cell is new or its own data is lost before it has heard of " +
			strings.Join(silent, " and of ")}, nil
	case own.isLost():
		return decision{}, own.lostMemberError()
	case len(lost) > 0:
		return decision{}, lostCellError(lost[0])
	}
	return decision{do: beginCell, adopts: source}, nil
}

// moveTarget is where the metadata of a cell of one process moves to.
type moveTarget struct {
	// name is what it is called, and flags are those with which a process is of it.
	name, flags string
}

var (
	toNodes = moveTarget{"the nodes", "--node and --cluster"}
	toEtcd  = moveTarget{"the etcd", "--etcd"}
)

// checkMetadata fails unless what the folder has of metadata is a node's, or is adopted.
func (own nodeFacts) checkMetadata() error {
	return checkAdoption(toNodes, own.data, own.place.name, own.file, own.hasMetadata, own.adopt)
}

// checkAdoption fails unless what a folder has of metadata is the target's, or is adopted. name is that of the process there.
func checkAdoption(to moveTarget, data, name string, f *nodeFile, hasMetadata, adopt bool) error {
	switch {
	case f == nil && adopt && !hasMetadata:
		return fmt.Errorf("there is nothing to adopt: %s has neither metadata logs nor categories. Give the --data of the cell that is to move to %s, or no --adopt", data, to.name)
	case f == nil && hasMetadata && !adopt:
		return fmt.Errorf("%s has the metadata of a cell of one process: to make it that of %s, add --adopt at this one; else give an empty --data", data, to.name)
	case f == nil:
		return nil
	case f.Detached:
		return fmt.Errorf("%s was detached from %s, and is that of a cell of one process: start it without %s, or with --adopt, for a new cell", data, f.target().name, to.flags)
	case adopt && f.Adopts != name:
		return fmt.Errorf("%s is that of a process whose cell began without what is to be adopted: give the --data of the cell that is to move to %s, or no --adopt", data, to.name)
	}
	return nil
}

// sourceOf returns the node whose folder has what the new cell begins with; empty if it begins with nothing. All nodes must agree on it: one that
// does not know of it would begin the cell with nothing.
func (own nodeFacts) sourceOf(others []nodeAnswer) (string, error) {
	source := ""
	if own.adopt {
		source = own.place.name
	} else if own.file != nil {
		source = own.file.Adopts
	}
	for _, o := range others {
		theirs := o.node.GetAdopts()
		if o.node.GetState() == scribev1.NodeState_NODE_STATE_READY || theirs == "" || theirs == source {
			continue
		}
		if source != "" {
			return "", fmt.Errorf("a cell begins with the metadata of one node: of %s, as node %s has it, or of %s, as node %s has it? Give --adopt to one only", source, own.place.name, theirs, o.place.name)
		}
		source = theirs
	}
	for _, o := range others {
		if o.node.GetState() == scribev1.NodeState_NODE_STATE_BEGUN && o.node.GetAdopts() != source {
			return "", fmt.Errorf("node %s has begun a cell without the metadata of node %s: stop it, and start it again with an empty --data", o.place.name, source)
		}
	}
	return source, nil
}

// checkFolder fails unless the folder with a member of etcd is that of this node.
func (own nodeFacts) checkFolder() error {
	switch f := own.file; {
	case f == nil:
		return fmt.Errorf("%s holds an etcd, and %s/%s is missing, which says whose it is: put it back, or start node %s with an empty folder and "+
			"replace it (scribe node replace %s)", etcdFolder(own.data), own.data, nodeFileName, own.place.name, own.place.name)
	case f.Name != own.place.name:
		return own.otherNameError()
	case f.Address != own.place.address:
		return fmt.Errorf("node %s was at %s, and --cluster says %s: the other nodes would not find it. Give its former address, or begin with an empty "+
			"folder at the new one after: scribe node replace %s", own.place.name, f.Address, own.place.address, own.place)
	}
	return nil
}

func (own nodeFacts) otherNameError() error {
	return fmt.Errorf("the data folder %s is that of node %s, not of %s: give another --data, or --node %s", own.data, own.file.Name, own.place.name, own.file.Name)
}

// isLost reports whether the node has nothing of a cell that it knows was ready.
func (own nodeFacts) isLost() bool {
	return !own.hasMember && own.file.state() == scribev1.NodeState_NODE_STATE_READY
}

// errMetadataLost is part of the errors of nodes none of which has anything of their cell.
var errMetadataLost = errors.New("its metadata is lost")

// lostMemberError: nobody else has anything of a cell that this node knows was ready.
func (own nodeFacts) lostMemberError() error {
	return fmt.Errorf("%s/%s says that the cell of node %s was ready, but %s is empty, and no other node has anything of the cell: %w. "+
		"Put back a copy of the folder, or rebuild it with scribe recover; to begin a new cell, give an empty --data", own.data, nodeFileName, own.place.name, etcdFolder(own.data), errMetadataLost)
}

// lostCellError: another node knows of a cell that was ready, and nobody has anything of it.
func lostCellError(lost nodePlace) error {
	return fmt.Errorf("the cell of node %s was ready, but its etcd is gone, and no other node has anything of the cell: %w. "+
		"Put back a copy of its --data, or rebuild it with scribe recover; to begin a new cell, give all nodes an empty --data", lost, errMetadataLost)
}

// checkAnswer fails if what answers is not the node that the list names, or if it is of another cell. A cell that was ready may have other
// nodes by now than it began with: then its members count.
func (own nodeFacts) checkAnswer(o nodeAnswer) error {
	if o.node.GetName() != o.place.name {
		return fmt.Errorf("at %s, where --cluster has node %s, answers node %s: want the same names at all nodes", o.place.address, o.place.name, o.node.GetName())
	}
	if theirs := nodesOf(o.node.GetCluster()); o.node.GetState() != scribev1.NodeState_NODE_STATE_READY && !slices.Equal(theirs, own.cluster) {
		return fmt.Errorf("nodes begin a cell with the same --cluster: node %s has %s, and node %s has %s", own.place.name, listNodes(own.cluster), o.place.name, listNodes(theirs))
	}
	return nil
}

// decideJoin says whether a node without data may join the cell whose members another node told: as one that has a place and never was there.
func decideJoin(own nodeFacts, via nodePlace, members []*scribev1.Node) error {
	for _, m := range members {
		place := nodePlace{m.GetPlace().GetName(), m.GetPlace().GetAddress()}
		switch {
		case place.address != own.place.address && place.name == own.place.name && m.GetStarted():
			return fmt.Errorf("node %s of the cell is at %s, and --cluster says %s: if it is to move, and that one does not run any more: scribe node replace %s --server %s",
				place.name, place.address, own.place.address, own.place, via.url(own.secure))
		case place.address != own.place.address:
		case m.GetStarted() && place.name != own.place.name:
			return fmt.Errorf("at %s the cell has node %s, not %s: want the same names at all nodes", place.address, place.name, own.place.name)
		case m.GetStarted():
			return fmt.Errorf("the data of node %s is gone: %s is empty, and the node was in the cell before. It must not go on as if it knew what it has voted for. "+
				"If the data can't be put back: scribe node replace %s --server %s", own.place.name, own.data, own.place.name, via.url(own.secure))
		default:
			return nil
		}
	}
	return fmt.Errorf("node %s is not one of the cell's nodes: add it with: scribe node add %s --server %s", own.place.name, own.place, via.url(own.secure))
}
