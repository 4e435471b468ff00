package app

import (
	"errors"
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
	Retention    Role = "retention"
	Sequencer    Role = "sequencer"
	SQLServer    Role = "sqlserver"
)

// AllRoles are in the order in which they start: each after those it needs. They stop in the opposite order.
var AllRoles = []Role{ControlPlane, Metalog, Batcher, WriteProxy, Scribed, ReadStream, ReadProxy, Retention, Sequencer, SQLServer}

var protoRoles = map[Role]scribev1.Role{
	ControlPlane: scribev1.Role_ROLE_CONTROLPLANE,
	Metalog:      scribev1.Role_ROLE_METALOG,
	Batcher:      scribev1.Role_ROLE_BATCHER,
	WriteProxy:   scribev1.Role_ROLE_WRITEPROXY,
	Scribed:      scribev1.Role_ROLE_SCRIBED,
	ReadStream:   scribev1.Role_ROLE_READSTREAM,
	ReadProxy:    scribev1.Role_ROLE_READPROXY,
	Retention:    scribev1.Role_ROLE_COLLECTOR,
	Sequencer:    scribev1.Role_ROLE_SEQUENCER,
	SQLServer:    scribev1.Role_ROLE_GATEWAY,
}

// RoleList are roles of a process.
type RoleList []Role

// UnmarshalText reads names separated by commas; "all" stands for every role. Names may repeat.
func (l *RoleList) UnmarshalText(text []byte) error {
	var roles RoleList
	var errs []error
	for name := range strings.SplitSeq(string(text), ",") {
		switch r := Role(strings.TrimSpace(name)); r {
		case "":
		case "all":
			roles = append(roles, AllRoles...)
		default:
			roles = append(roles, r)
			errs = append(errs, checkRole(r))
		}
	}
	*l = roles
	return errors.Join(errs...)
}

// checkRole returns what is wrong with the name of a role.
func checkRole(r Role) error {
	switch {
	case slices.Contains(AllRoles, r):
		return nil
	case Renamed[string(r)] != "":
		return fmt.Errorf("the role %q is called %q now", r, Renamed[string(r)])
	}
	return fmt.Errorf("unknown role %q: want some of %s, or all", r, roleList())
}

func roleList() string {
	names := make([]string, len(AllRoles))
	for i, r := range AllRoles {
		names[i] = string(r)
	}
	return strings.Join(names, ", ")
}
