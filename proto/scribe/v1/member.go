package scribev1

// LoadOf returns the load of a role of the member, 0 (idle) to 1000 (refusing). known is false if the member does not advertise it. Programs
// that do not tell the loads of their roles apart advertise those of their batcher and their read stream as one.
func (m *Member) LoadOf(role Role) (load uint32, known bool) {
	for _, l := range m.GetLoads() {
		if l.GetRole() == role {
			return l.GetLoad(), true
		}
	}
	if len(m.GetLoads()) == 0 && (role == Role_ROLE_BATCHER || role == Role_ROLE_READSTREAM) {
		return m.GetLoad(), true
	}
	return 0, false
}
