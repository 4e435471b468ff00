package access

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"scribe/internal/transport/principal"
	scribev1 "scribe/proto/scribe/v1"
)

var noon = time.UnixMicro(1_800_000_000_000_000)

func encode(t testing.TB, m proto.Message) []byte {
	t.Helper()
	b, err := EncodeRecord(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func grantOf(t testing.TB, name string, rules ...string) (string, []byte) {
	t.Helper()
	normal, err := ParseRules(rules, !IsRole(name))
	if err != nil {
		t.Fatal(err)
	}
	return GrantKey(name), encode(t, &scribev1.AccessGrant{Principal: name, Rules: normal})
}

// recordsOf returns the records of grants, given as "principal rule rule".
func recordsOf(t testing.TB, grants ...string) map[string][]byte {
	t.Helper()
	records := map[string][]byte{}
	for _, g := range grants {
		words := strings.Fields(g)
		key, value := grantOf(t, words[0], words[1:]...)
		records[key] = value
	}
	return records
}

// addToken adds a token of a principal, and returns its text and id.
func addToken(t testing.TB, records map[string][]byte, name string, change func(*scribev1.AccessToken), rules ...string) (text, id string) {
	t.Helper()
	id, text, hash := NewToken(nil)
	token := &scribev1.AccessToken{Id: id, Principal: name, Rules: rules, Hash: hash, IssuedAt: noon.UnixMicro()}
	if change != nil {
		change(token)
	}
	records[TokenKey(id)] = encode(t, token)
	return text, id
}

func setOf(t testing.TB, records map[string][]byte) *Set {
	t.Helper()
	s, damaged := NewSet(records)
	if len(damaged) > 0 {
		t.Fatal(damaged)
	}
	return s
}

func client(name string) principal.Principal {
	return principal.Principal{Kind: principal.Client, Name: name}
}

func TestDecide(t *testing.T) {
	s := setOf(t, recordsOf(t, "alice read:web.* write:web.access", "bob query:owner=payments group:*", "carol role:web role:gone", "role:web read:web. manage:web.x*", "root all:*"))
	for _, c := range []struct {
		who             string
		what            Permission
		category, owner string
		want            Cause
	}{
		{"alice", Read, "web.access", "", Allowed},
		{"alice", Read, "web.", "", Allowed},
		{"alice", Read, "web", "", NoRule},
		{"alice", Read, "webx", "", NoRule},
		{"alice", Write, "web.access", "", Allowed},
		{"alice", Write, "web.access2", "", NoRule},
		{"alice", Query, "web.access", "", NoRule},
		{"alice", Operate, "", "", NoRule},
		{"bob", Query, "anything", "payments", Allowed},
		{"bob", Query, "anything", "other", NoRule},
		{"bob", Query, "anything", "", NoRule},
		{"bob", Query, "payments", "", NoRule},
		{"bob", Group, "", "", Allowed},
		{"carol", Manage, "web.xy", "", Allowed},
		{"carol", Manage, "web.y", "", NoRule},
		{"root", Operate, "", "", Allowed},
		{"root", Monitor, "", "", Allowed},
		{"alice", Monitor, "", "", NoRule},
		{"root", Read, "x", "", Allowed},
		{"nobody", Read, "x", "", NoRule},
	} {
		if got := s.Decide(client(c.who), c.what, c.category, c.owner, noon); got != c.want {
			t.Errorf("%s, %v, %q of %q: %q, want %q", c.who, c.what, c.category, c.owner, got, c.want)
		}
	}
	if got := s.Decide(principal.Principal{}, Read, "web.access", "", noon); got != Unproven {
		t.Errorf("anonymous: %q", got)
	}
	if got := s.Decide(principal.Principal{Kind: principal.Member}, Write, "x", "", noon); got != Allowed {
		t.Errorf("a member: %q", got)
	}
	operator := principal.Principal{Kind: principal.Operator, Name: "ops"}
	if s.Decide(operator, Operate, "", "", noon) != Allowed || s.Decide(operator, Manage, "x", "", noon) != Allowed || s.Decide(operator, Read, "x", "", noon) != NoRule {
		t.Error("an operator operates and manages, and reads nothing")
	}
	// A role's name is not a principal's.
	if got := s.Decide(client("role:web"), Manage, "web.xy", "", noon); got != NoRule {
		t.Errorf("a principal with the name of a role: %q", got)
	}
}

func TestOpenAndClosed(t *testing.T) {
	open := new(Set)
	if open.Closed() || open.Decide(principal.Principal{}, Operate, "", "", noon) != Allowed {
		t.Error("a set without records is not open")
	}
	key, value := grantOf(t, "a", "read:x")
	closed, _ := open.Apply(map[string][]byte{key: value}, nil)
	again, _ := closed.Apply(nil, []string{key})
	if !closed.Closed() || !again.Closed() || again.Decide(client("a"), Read, "x", "", noon) != NoRule {
		t.Error("the end of the last grant opens the cell")
	}
	if open.Closed() {
		t.Error("a set was changed")
	}
	unknown, _ := open.Apply(map[string][]byte{"newer/x": {1}}, nil)
	if !unknown.Closed() {
		t.Error("a record of a newer program leaves the cell open")
	}
}

func TestTokens(t *testing.T) {
	records := recordsOf(t, "alice read:a")
	own, ownID := addToken(t, records, "alice", nil, "write:b")
	named, _ := addToken(t, records, "alice", nil)
	expired, expiredID := addToken(t, records, "alice", func(a *scribev1.AccessToken) { a.ExpiresAt = noon.UnixMicro() }, "all:*")
	revoked, _ := addToken(t, records, "alice", func(a *scribev1.AccessToken) { a.RevokedAt = 1 }, "all:*")
	s := setOf(t, records)
	p, cause := s.Authenticate(own, noon)
	if cause != Allowed || p != (principal.Principal{Kind: principal.Client, Name: "alice", Token: ownID}) {
		t.Fatalf("%v, %q", p, cause)
	}
	if s.Decide(p, Write, "b", "", noon) != Allowed || s.Decide(p, Read, "a", "", noon) != NoRule {
		t.Error("a token with rules has others than its own")
	}
	if p, _ = s.Authenticate(named, noon); s.Decide(p, Read, "a", "", noon) != Allowed || s.Decide(p, Write, "b", "", noon) != NoRule {
		t.Error("a token without rules has not those of its principal")
	}
	for text, want := range map[string]Cause{
		expired: Expired, revoked: Revoked, "": BadToken, "scribe_": BadToken, own[:len(own)-1]: BadToken, own + "A": BadToken, "x" + own[1:]: BadToken,
		// The id of one with the secret of another.
		own[:20] + named[20:]: BadToken, expired[:20] + named[20:]: BadToken,
	} {
		if p, cause := s.Authenticate(text, noon); cause != want || p.Kind != principal.Anonymous {
			t.Errorf("%.30q: %v, %q, want %q", text, p, cause, want)
		}
	}
	if _, cause := s.Authenticate(expired, noon.Add(-time.Microsecond)); cause != Allowed {
		t.Errorf("before it expires: %q", cause)
	}
	night, _ := addToken(t, records, "night", nil, "operate:*")
	if p, _ := setOf(t, records).Authenticate(night, noon); setOf(t, records).Decide(p, Monitor, "", "", noon) != Allowed {
		t.Error("who may operate the cell may not monitor it")
	}
	admin, _ := addToken(t, records, "alice", nil, "all:*")
	if p, _ := setOf(t, records).Authenticate(admin, noon); p.Kind != principal.Operator {
		t.Errorf("who may operate the cell is %v", p)
	}
	watcher, _ := addToken(t, records, "prometheus", nil, "monitor:*")
	set := setOf(t, records)
	p, _ = set.Authenticate(watcher, noon)
	if p.Kind != principal.Operator || set.Decide(p, Monitor, "", "", noon) != Allowed || set.Decide(p, Operate, "", "", noon) != NoRule || set.Decide(p, Read, "a", "", noon) != NoRule {
		t.Errorf("who may monitor the cell is %v, or may do more", p)
	}
	if got := s.Decide(principal.Principal{Kind: principal.Operator, Name: "alice", Token: ownID}, Manage, "b", "", noon); got != NoRule {
		t.Errorf("a token that was an operator's: %q", got)
	}
	// What has begun before ends as well.
	if got := s.Decide(principal.Principal{Kind: principal.Client, Name: "alice", Token: expiredID}, Read, "a", "", noon); got != Expired {
		t.Errorf("after it has expired: %q", got)
	}
	if got := s.Decide(principal.Principal{Kind: principal.Client, Name: "alice", Token: "purged"}, Read, "a", "", noon); got != BadToken {
		t.Errorf("a token that is gone: %q", got)
	}
	if end := s.EndOf(principal.Principal{Token: expiredID}); !end.Equal(noon) {
		t.Errorf("it ends at %v", end)
	}
}

// TestDamageDenies: a damaged record takes the place of the former one, and concerns nobody else.
func TestDamageDenies(t *testing.T) {
	records := recordsOf(t, "alice read:a", "bob role:web", "carol read:a", "role:web read:a")
	text, _ := addToken(t, records, "carol", nil)
	s := setOf(t, records)
	var tokenKey string
	for key := range records {
		if strings.HasPrefix(key, "token/") {
			tokenKey = key
		}
	}
	next, damaged := s.Apply(map[string][]byte{GrantKey("alice"): {0xff}, GrantKey("role:web"): nil, tokenKey: {0x0a}}, nil)
	if len(damaged) != 3 || next.Damaged() != 3 {
		t.Fatalf("%d damaged records: %v", next.Damaged(), damaged)
	}
	for who, want := range map[string]Cause{"alice": Damaged, "bob": NoRule, "carol": Allowed} {
		if got := next.Decide(client(who), Read, "a", "", noon); got != want {
			t.Errorf("%s: %q, want %q", who, got, want)
		}
	}
	if _, cause := next.Authenticate(text, noon); cause != BadToken {
		t.Errorf("a damaged token: %q", cause)
	}
	mended, damaged := next.Apply(records, nil)
	if len(damaged) != 0 || mended.Damaged() != 0 || mended.Decide(client("alice"), Read, "a", "", noon) != Allowed || mended.Rules() != s.Rules() {
		t.Errorf("after the records were written again: %v, %d damaged, %d rules", damaged, mended.Damaged(), mended.Rules())
	}
	// In a list of all it is the same.
	records[GrantKey("alice")] = []byte{0xff}
	if s, damaged := NewSet(records); len(damaged) != 1 || s.Decide(client("alice"), Read, "a", "", noon) != Damaged || s.Decide(client("bob"), Read, "a", "", noon) != Allowed {
		t.Error("a damaged record in a list")
	}
	// A record that decodes and says it is another's is damaged as well.
	_, stolen := grantOf(t, "root", "all:*")
	if s, damaged := NewSet(map[string][]byte{GrantKey("alice"): stolen}); len(damaged) != 1 || s.Decide(client("alice"), Read, "a", "", noon) != Damaged {
		t.Error("the record of another counts")
	}
}

func TestExplain(t *testing.T) {
	records := recordsOf(t, "alice read:web.* read,write:web.access role:ops", "role:ops query:owner=x", "root all:*")
	_, id := addToken(t, records, "alice", nil, "write:b")
	s := setOf(t, records)
	token := principal.Principal{Kind: principal.Client, Name: "alice", Token: id}
	for _, c := range []struct {
		p               principal.Principal
		what            Permission
		category, owner string
		allowed         bool
		rule, holder    string
	}{
		{client("alice"), Read, "web.access", "", true, "write,read:web.access", "alice"},
		{client("alice"), Read, "web.other", "", true, "read:web.*", "alice"},
		{client("alice"), Query, "any", "x", true, "query:owner=x", "role:ops"},
		{client("alice"), Manage, "web.access", "", false, "", ""},
		{client("root"), Operate, "", "", true, "all:*", "root"},
		{token, Write, "b", "", true, "write:b", "token " + id},
		{token, Read, "web.access", "", false, "", ""},
	} {
		e := s.Explain(c.p, c.what, c.category, c.owner, noon)
		if e.Allowed != c.allowed || e.Rule != c.rule || e.Holder != c.holder || e.Reason == "" {
			t.Errorf("%v, %v, %q: %+v, want %v by %q of %q", c.p, c.what, c.category, e, c.allowed, c.rule, c.holder)
		}
	}
	if e := new(Set).Explain(client("x"), Read, "a", "", noon); !e.Allowed || !strings.Contains(e.Reason, "open") {
		t.Errorf("an open cell: %+v", e)
	}
}

func TestAdministrator(t *testing.T) {
	records := recordsOf(t, "alice read:*", "role:admins all:*")
	s := setOf(t, records)
	if s.HasAdministrator(noon) {
		t.Error("a role alone administers nothing")
	}
	key, value := grantOf(t, "bob", "role:admins")
	if with, _ := s.Apply(map[string][]byte{key: value}, nil); !with.HasAdministrator(noon) {
		t.Error("a principal with the role is none")
	}
	addToken(t, records, "x", func(a *scribev1.AccessToken) { a.ExpiresAt = noon.UnixMicro() }, "operate:*")
	if s := setOf(t, records); s.HasAdministrator(noon) || !s.HasAdministrator(noon.Add(-time.Second)) {
		t.Error("an expired token administers")
	}
}

// BenchmarkDecide: go test -run '^$' -bench Decide -count 6 ./internal/cell/access
func BenchmarkDecide(b *testing.B) {
	records := map[string][]byte{}
	const principals, each = 10_000, 10
	for i := range principals {
		rules := make([]string, 0, each)
		for j := range each {
			rules = append(rules, []string{fmt.Sprintf("read:web.%d.%d.*", i, j), fmt.Sprintf("write,read:app.%d.%d", i, j), fmt.Sprintf("query:owner=team%d-%d", i, j)}[j%3])
		}
		key, value := grantOf(b, fmt.Sprintf("p%d", i), rules...)
		records[key] = value
	}
	s := setOf(b, records)
	if s.Rules() != principals*each {
		b.Fatal(s.Rules())
	}
	for name, c := range map[string]struct {
		category, owner string
	}{"exact": {"app.7000.1", ""}, "prefix": {"web.7000.0.access", ""}, "owner": {"x", "team7000-2"}, "denied": {"app.6999.1", "team1-2"}} {
		b.Run(name, func(b *testing.B) {
			what := Read
			if name == "owner" {
				what = Query
			}
			b.ReportAllocs()
			for b.Loop() {
				if got := s.Decide(client("p7000"), what, c.category, c.owner, noon); (got == Allowed) != (name != "denied") {
					b.Fatal(got)
				}
			}
		})
	}
}

// TestIssued: who has a token of an issuer may do what is granted to its name, to the roles that are granted to that, and to the roles that the token gives; until the token ends
// or its key is withdrawn.
func TestIssued(t *testing.T) {
	records := map[string][]byte{}
	for name, rules := range map[string][]string{
		"oidc:ada": {"read:own", "role:granted"}, "role:granted": {"read:granted"}, "role:oidc:web": {"read:given", "query:owner=web"}, "role:oidc:ops": {"operate:*"},
	} {
		key, value := grantOf(t, name, rules...)
		records[key] = value
	}
	s := setOf(t, records)
	withdrawn := make(chan struct{})
	issued := func(roles ...string) principal.Principal {
		return s.WithKind(principal.Principal{Name: "oidc:ada", Issued: &principal.Issued{Roles: roles, Expires: noon.Add(time.Hour), Withdrawn: withdrawn}}, noon)
	}
	ada, web, ops := issued(), issued("role:oidc:none", "role:oidc:web"), issued("role:oidc:ops")
	if ada.Kind != principal.Client || web.Kind != principal.Client || ops.Kind != principal.Operator {
		t.Errorf("kinds %s, %s, %s", ada.Kind, web.Kind, ops.Kind)
	}
	for _, c := range []struct {
		p           principal.Principal
		what        Permission
		name, owner string
		want        Cause
	}{
		{ada, Read, "own", "", Allowed},
		{ada, Read, "granted", "", Allowed},
		{ada, Read, "given", "", NoRule},
		{ada, Query, "x", "web", NoRule},
		{web, Read, "own", "", Allowed},
		{web, Read, "granted", "", Allowed},
		{web, Read, "given", "", Allowed},
		{web, Query, "x", "web", Allowed},
		{web, Write, "given", "", NoRule},
		{ops, Operate, "", "", Allowed},
		{ops, Read, "given", "", NoRule},
		{ops, Manage, "x", "", NoRule}, // the kind gives nothing that its rules do not: it is not a certificate's
	} {
		if got := s.Decide(c.p, c.what, c.name, c.owner, noon); got != c.want {
			t.Errorf("%v %s %q: %q, want %q", c.p.Issued.Roles, c.what, c.name, got, c.want)
		}
	}
	if s.DecideAny(ada, Query, noon) != NoRule || s.DecideAny(web, Query, noon) != Allowed || s.UsesOwners(ada, Query, noon) || !s.UsesOwners(web, Query, noon) {
		t.Error("what a role of the token gives does not count for all categories")
	}
	if e := s.Explain(web, Read, "given", "", noon); !e.Allowed || e.Holder != "role:oidc:web" {
		t.Errorf("%+v", e)
	}
	if end := s.EndOf(web); !end.Equal(noon.Add(time.Hour)) {
		t.Error(end)
	}
	if got := s.Decide(web, Read, "own", "", noon.Add(time.Hour)); got != Expired {
		t.Errorf("at its end: %q", got)
	}
	close(withdrawn)
	if got := s.Decide(web, Read, "own", "", noon); got != UnknownKey {
		t.Errorf("without its key: %q", got)
	}
	open := new(Set)
	if p := open.WithKind(principal.Principal{Name: "oidc:ada", Issued: &principal.Issued{Expires: noon.Add(time.Hour)}}, noon); p.Kind != principal.Client {
		t.Errorf("in an open cell a token makes a %s", p.Kind)
	}
}
