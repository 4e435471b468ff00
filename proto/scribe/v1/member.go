package scribev1

// LoadOf returns the load of a role of the member, 0 (idle) to 1000 (refusing). known is false if the member does not advertise it. Programs
// that do not tell the loads of their roles apart advertise those of their batcher and their read stream as one. A load of 0 in their way is not known: a member that has not spoken to the
// control plane since it began to lead, or is from a file, has it too.
func (m *Member) LoadOf(role Role) (load uint32, known bool) {
	for _, l := range m.GetLoads() {
		if l.GetRole() == role {
			return l.GetLoad(), true
		}
	}
	if len(m.GetLoads()) == 0 && (role == Role_ROLE_BATCHER || role == Role_ROLE_READSTREAM) {
		return m.GetLoad(), m.GetLoad() > 0
	}
	return 0, false
}

// BusiestLoad returns the load of the busiest role of the member, and that role if the member tells the loads of its roles apart.
func (m *Member) BusiestLoad() (load uint32, role Role) {
	load = m.GetLoad()
	for _, l := range m.GetLoads() {
		if l.GetLoad() > 0 && (l.GetLoad() > load || l.GetLoad() == load && role == Role_ROLE_UNSPECIFIED) {
			load, role = l.GetLoad(), l.GetRole()
		}
	}
	return load, role
}

// JointLoad returns the load that stands for a process among programs that do not tell the loads of its roles apart: they choose batchers and
// read streams by it.
func JointLoad(loads []*RoleLoad) (most uint32) {
	for _, l := range loads {
		if l.GetRole() == Role_ROLE_BATCHER || l.GetRole() == Role_ROLE_READSTREAM {
			most = max(most, l.GetLoad())
		}
	}
	return most
}
