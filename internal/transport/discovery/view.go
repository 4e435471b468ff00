package discovery

import (
	"slices"
	"time"

	"scribe/internal/base/balance"
	"scribe/internal/base/entropy"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// cellView is the known membership of a cell. It is immutable; the zero view is empty.
type cellView struct {
	roles   map[scribev1.Role][]string // base URLs, each once
	spare   map[scribev1.Role][]string // members that offer a role in addition to the given address, which is used first
	members map[string]string          // base URLs by member id
	agent   string                     // the given address that is an agent, also while it stops or is away
	listed  []*scribev1.Member         // those that have a URL
	// listedAt is when the members were listed, by the clock of Member.joined_at, in Unix microseconds; 0 if it is not known.
	listedAt int64
}

// viewOf returns the view that the given address reports. The roles that it offers are used there. Other members with these roles
// are spares for the calls that it evicts. The address may itself be one of these members, under another name.
func viewOf(st *scribev1.GetStatusResponse, server string, old cellView) cellView {
	v := membersOf(st)
	for _, r := range st.GetRoles() {
		v.spare[r] = slices.DeleteFunc(v.roles[r], func(url string) bool { return url == server })
		v.roles[r] = []string{server}
	}
	if slices.Contains(st.GetRoles(), scribev1.Role_ROLE_SCRIBED) || st.GetStopping() && old.agent == server {
		v.agent = server
	}
	return v
}

// viewOfOne returns the view for an address that does not serve ControlService, for example a proxy that admits only writes. All
// roles are tried there.
func viewOfOne(server string) cellView {
	v := cellView{roles: make(map[scribev1.Role][]string)}
	for number := range scribev1.Role_name {
		if r := scribev1.Role(number); r != scribev1.Role_ROLE_UNSPECIFIED && r != scribev1.Role_ROLE_SCRIBED {
			v.roles[r] = []string{server}
		}
	}
	return v
}

// viewFrom returns the view that a member reports, in place of the given addresses, which do not answer. An agent at a given
// address is still used for writes: no other host's agent replaces it.
func viewFrom(st *scribev1.GetStatusResponse, url string, old cellView) cellView {
	v := membersOf(st)
	for _, r := range st.GetRoles() {
		if r != scribev1.Role_ROLE_SCRIBED {
			v.add(r, url)
		}
	}
	for _, agent := range old.roles[scribev1.Role_ROLE_SCRIBED] {
		v.add(scribev1.Role_ROLE_SCRIBED, agent)
	}
	v.agent = old.agent
	return v
}

func membersOf(st *scribev1.GetStatusResponse) cellView {
	v := cellView{
		roles: make(map[scribev1.Role][]string), spare: make(map[scribev1.Role][]string),
		members: make(map[string]string), listedAt: st.GetMembersAt(),
	}
	for _, m := range st.GetMembers() {
		if m.GetUrl() == "" {
			continue // can't be reached
		}
		v.members[m.GetId()] = m.GetUrl()
		v.listed = append(v.listed, m)
		for _, r := range m.GetRoles() {
			if r != scribev1.Role_ROLE_SCRIBED {
				v.add(r, m.GetUrl())
			}
		}
	}
	return v
}

// reportsOf returns what the members say of their loads in a role.
func (v cellView) reportsOf(role scribev1.Role) (reports []balance.Report) {
	for _, m := range v.listed {
		if !slices.Contains(m.GetRoles(), role) {
			continue
		}
		r := balance.Report{ID: m.GetUrl()}
		r.Load, r.Known = m.LoadOf(role)
		if v.listedAt != 0 && m.GetJoinedAt() != 0 {
			r.Start, r.Age = balance.StartOf(m.GetIncarnation(), m.GetJoinedAt()), max(time.Duration(v.listedAt-m.GetJoinedAt())*time.Microsecond, 0)
		}
		reports = append(reports, r)
	}
	return reports
}

func (v cellView) add(r scribev1.Role, url string) {
	if !slices.Contains(v.roles[r], url) {
		v.roles[r] = append(v.roles[r], url)
	}
}

func (v cellView) has(in roleInstance) bool {
	return slices.Contains(v.roles[in.role], in.url) || slices.Contains(v.spare[in.role], in.url)
}

// first returns the first of roles that any member offers.
func (v cellView) first(roles []scribev1.Role) (scribev1.Role, bool) {
	for _, r := range roles {
		if len(v.roles[r]) > 0 {
			return r, true
		}
	}
	return 0, false
}

// knows reports whether a status is of the same cell.
func (v cellView) knows(st *scribev1.GetStatusResponse) bool {
	return slices.ContainsFunc(st.GetMembers(), func(m *scribev1.Member) bool { _, ok := v.members[m.GetId()]; return ok })
}

// substitutes returns a few random members to ask in place of the given addresses.
func (v cellView) substitutes(given rpc.AddressList, random *entropy.Source) []string {
	urls := make([]string, 0, len(v.members))
	for _, url := range v.members {
		if !slices.Contains(given, url) && !slices.Contains(urls, url) {
			urls = append(urls, url)
		}
	}
	random.Shuffle(len(urls), func(i, j int) { urls[i], urls[j] = urls[j], urls[i] })
	return urls[:min(len(urls), maxSubstitutes)]
}
