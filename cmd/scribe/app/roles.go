package app

import (
	"fmt"
	"slices"
	"strings"

	scribev1 "scribe/proto/scribe/v1"
)

// Role names a service that a process can offer. The values are what users write after --roles.
type Role string

// The roles.
const (
	ControlPlane Role = "controlplane"
	Metalog      Role = "metalog"
	Batcher      Role = "batcher"
	WriteProxy   Role = "writeproxy"
	Scribed      Role = "scribed"
	ReadStream   Role = "readstream"
	ReadProxy    Role = "readproxy"
	Collector    Role = "collector"
	Sequencer    Role = "sequencer"
	Gateway      Role = "gateway"
)

// AllRoles are in the order in which they start: each after those it needs. They stop in the opposite order.
var AllRoles = []Role{ControlPlane, Metalog, Batcher, WriteProxy, Scribed, ReadStream, ReadProxy, Collector, Sequencer, Gateway}

var protoRoles = map[Role]scribev1.Role{
	ControlPlane: scribev1.Role_ROLE_CONTROLPLANE,
	Metalog:      scribev1.Role_ROLE_METALOG,
	Batcher:      scribev1.Role_ROLE_BATCHER,
	WriteProxy:   scribev1.Role_ROLE_WRITEPROXY,
	Scribed:      scribev1.Role_ROLE_SCRIBED,
	ReadStream:   scribev1.Role_ROLE_READSTREAM,
	ReadProxy:    scribev1.Role_ROLE_READPROXY,
	Collector:    scribev1.Role_ROLE_COLLECTOR,
	Sequencer:    scribev1.Role_ROLE_SEQUENCER,
	Gateway:      scribev1.Role_ROLE_GATEWAY,
}

// ParseRoles reads a list of names separated by commas; "all" stands for every role. Names may repeat.
func ParseRoles(s string) ([]Role, error) {
	var roles []Role
	var unknown []string
	for name := range strings.SplitSeq(s, ",") {
		switch r := Role(strings.TrimSpace(name)); {
		case r == "":
		case r == "all":
			roles = append(roles, AllRoles...)
		case slices.Contains(AllRoles, r):
			roles = append(roles, r)
		default:
			unknown = append(unknown, string(r))
		}
	}
	if len(unknown) > 0 {
		return nil, fmt.Errorf("unknown roles %s: the roles are %s, or all", strings.Join(unknown, ", "), roleList())
	}
	return roles, nil
}

func roleList() string {
	names := make([]string, len(AllRoles))
	for i, r := range AllRoles {
		names[i] = string(r)
	}
	return strings.Join(names, ", ")
}
