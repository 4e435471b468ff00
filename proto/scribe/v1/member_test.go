package scribev1

import "testing"

func TestLoadOf(t *testing.T) {
	older := &Member{Load: 300}
	newer := &Member{Load: 700, Loads: []*RoleLoad{{Role: Role_ROLE_BATCHER, Load: 20}, {Role: Role_ROLE_READPROXY, Load: 700}}}
	for _, tc := range []struct {
		of    *Member
		role  Role
		load  uint32
		known bool
	}{
		{older, Role_ROLE_BATCHER, 300, true},
		{older, Role_ROLE_READSTREAM, 300, true},
		{older, Role_ROLE_WRITEPROXY, 0, false},
		{newer, Role_ROLE_BATCHER, 20, true},
		{newer, Role_ROLE_READPROXY, 700, true},
		{newer, Role_ROLE_WRITEPROXY, 0, false},
	} {
		if load, known := tc.of.LoadOf(tc.role); load != tc.load || known != tc.known {
			t.Errorf("%v of %v: %d, %v", tc.role, tc.of, load, known)
		}
	}
}
