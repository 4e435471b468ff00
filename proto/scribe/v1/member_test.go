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
		{&Member{}, Role_ROLE_BATCHER, 0, false}, // it has not spoken
		{newer, Role_ROLE_BATCHER, 20, true},
		{newer, Role_ROLE_READPROXY, 700, true},
		{newer, Role_ROLE_WRITEPROXY, 0, false},
	} {
		if load, known := tc.of.LoadOf(tc.role); load != tc.load || known != tc.known {
			t.Errorf("%v of %v: %d, %v", tc.role, tc.of, load, known)
		}
	}
}

// TestJointLoad: older programs, which take Member.load for that of a batcher or a read stream, do not see how busy a read proxy beside it is.
func TestJointLoad(t *testing.T) {
	loads := []*RoleLoad{{Role: Role_ROLE_BATCHER, Load: 20}, {Role: Role_ROLE_READSTREAM, Load: 50}, {Role: Role_ROLE_READPROXY, Load: 700}}
	if got := JointLoad(loads); got != 50 {
		t.Errorf("load %d", got)
	}
	if load, role := (&Member{Load: 50, Loads: loads}).BusiestLoad(); load != 700 || role != Role_ROLE_READPROXY {
		t.Errorf("the busiest role is %v with %d", role, load)
	}
	if load, role := (&Member{Load: 50, Loads: loads[:2]}).BusiestLoad(); load != 50 || role != Role_ROLE_READSTREAM {
		t.Errorf("the busiest role is %v with %d", role, load)
	}
	if load, role := (&Member{Load: 50}).BusiestLoad(); load != 50 || role != Role_ROLE_UNSPECIFIED {
		t.Errorf("the busiest role of an older member is %v with %d", role, load)
	}
}
