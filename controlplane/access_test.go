package controlplane

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"scribe/internal/cell/access"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/kv"
)

func issue(t *testing.T, c *ControlPlane, name string, ttl time.Duration, rules ...string) (text, id string) {
	t.Helper()
	res, err := c.IssueToken(t.Context(), &scribev1.IssueTokenRequest{Principal: name, Rules: rules, Ttl: durationpb.New(ttl)})
	if err != nil {
		t.Fatal(err)
	}
	return res.GetText(), res.GetToken().GetId()
}

func grant(t *testing.T, c *ControlPlane, name string, rules ...string) *scribev1.AccessGrant {
	t.Helper()
	res, err := c.AddGrants(t.Context(), &scribev1.AddGrantsRequest{Principal: name, Rules: rules})
	if err != nil {
		t.Fatal(err)
	}
	return res.GetGrant()
}

// stored returns the set of what a control plane has stored.
func stored(t *testing.T, c *ControlPlane) *access.Set {
	t.Helper()
	a, err := c.readAccess(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return a.set
}

func TestTokenLife(t *testing.T) {
	now := time.UnixMicro(1_800_000_000_000_000)
	store := newStore(t)
	c := start(t, store, func(_ *Config, d *Deps) { d.Now = func() time.Time { return now } })
	_, err := c.IssueToken(t.Context(), &scribev1.IssueTokenRequest{Rules: []string{"write:web.*"}})
	wantReason(t, err, scribev1.Reason_REASON_INVALID, "nobody could administer", "all:*")
	if stored(t, c).Closed() {
		t.Fatal("the cell is closed, and nobody can administer it")
	}
	admin, adminID := issue(t, c, "admin", 0, "all:*")
	text, id := issue(t, c, "", time.Hour, "write:web.*", "read,write:x")
	p, cause := stored(t, c).Authenticate(text, now)
	if cause != access.Allowed || p.Name != id {
		t.Fatalf("%v, %q", p, cause)
	}
	if key, _ := stored(t, c).NewestKey(); key != 1 {
		t.Errorf("a closed cell has the ticket key %d", key)
	}
	list, err := c.ListTokens(t.Context(), &scribev1.ListTokensRequest{})
	if err != nil || len(list.GetTokens()) != 2 || list.GetMore() {
		t.Fatalf("%v, %v", list, err)
	}
	for _, a := range list.GetTokens() {
		if a.GetHash() != nil || a.GetId() == id && (a.GetExpiresAt() != now.Add(time.Hour).UnixMicro() || !slices.Equal(a.GetRules(), []string{"write,read:x", "write:web.*"})) {
			t.Errorf("listed as %v", a)
		}
	}
	// No text of a token is stored.
	page, err := store.Range(t.Context(), kv.KeyRange{})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range page.Entries {
		if strings.Contains(string(e.Value), text[20:]) || strings.Contains(string(e.Value), admin[20:]) {
			t.Errorf("%s has the text of a token", e.Key)
		}
	}
	revoke := func(id string) error {
		_, err := c.RevokeToken(t.Context(), &scribev1.RevokeTokenRequest{Id: id})
		return err
	}
	for range 2 {
		if err := revoke(id); err != nil {
			t.Fatal(err)
		}
	}
	if _, cause := stored(t, c).Authenticate(text, now); cause != access.Revoked {
		t.Errorf("a revoked token: %q", cause)
	}
	wantReason(t, revoke("nothing"), scribev1.Reason_REASON_MISSING)
	wantReason(t, revoke(adminID), scribev1.Reason_REASON_INVALID, "nobody could administer")
	if _, err := store.Commit(t.Context(), kv.Put(accessPrefix+access.TokenKey("abcdefghijkl"), []byte{0xff})); err != nil {
		t.Fatal(err)
	}
	if list, err = c.ListTokens(t.Context(), &scribev1.ListTokensRequest{}); err != nil || !slices.Equal(list.GetDamaged(), []string{"abcdefghijkl"}) || len(list.GetTokens()) != 2 {
		t.Errorf("%v, %v", list, err)
	}
	if err := revoke("abcdefghijkl"); err != nil {
		t.Error(err)
	}
	_, err = c.IssueToken(t.Context(), &scribev1.IssueTokenRequest{Principal: "a\n", Rules: []string{"read"}, Ttl: durationpb.New(time.Millisecond)})
	wantReason(t, err, scribev1.Reason_REASON_INVALID, "principal: ", "rules: ", "ttl: ")
	_, err = c.IssueToken(t.Context(), &scribev1.IssueTokenRequest{Rules: make([]string, access.MaxTokenRules+1)})
	wantReason(t, err, scribev1.Reason_REASON_INVALID, "the limit is 100")
	_, err = c.IssueToken(t.Context(), &scribev1.IssueTokenRequest{})
	wantReason(t, err, scribev1.Reason_REASON_INVALID, "are missing")
}

func TestGrants(t *testing.T) {
	store := newStore(t)
	c := start(t, store, nil)
	_, err := c.AddGrants(t.Context(), &scribev1.AddGrantsRequest{Principal: "alice", Rules: []string{"read:a"}})
	wantReason(t, err, scribev1.Reason_REASON_INVALID, "nobody could administer")
	grant(t, c, "root", "all:*")
	grant(t, c, "alice", "read:a", "role:web")
	if g := grant(t, c, "alice", "write,read:b", "read:a"); !slices.Equal(g.GetRules(), []string{"read:a", "role:web", "write,read:b"}) {
		t.Errorf("alice has %q", g.GetRules())
	}
	grant(t, c, "role:web", "query:owner=web")
	if _, err := c.CreateCategory(t.Context(), &scribev1.CreateCategoryRequest{Category: &scribev1.Category{Name: "pages", Owner: "web"}}); err != nil {
		t.Fatal(err)
	}
	check := func(name, what, category string) *scribev1.CheckAccessResponse {
		res, err := c.CheckAccess(t.Context(), &scribev1.CheckAccessRequest{Principal: name, Permission: what, Category: category})
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
	if res := check("alice", "query", "pages"); !res.GetAllowed() || res.GetRule() != "query:owner=web" || res.GetHolder() != "role:web" {
		t.Errorf("%v", res)
	}
	if res := check("alice", "query", "other"); res.GetAllowed() || res.GetReason() == "" {
		t.Errorf("%v", res)
	}
	if res := check("root", "operate", ""); !res.GetAllowed() {
		t.Errorf("%v", res)
	}
	remove := func(name string, all bool, rules ...string) error {
		_, err := c.RemoveGrants(t.Context(), &scribev1.RemoveGrantsRequest{Principal: name, Rules: rules, All: all})
		return err
	}
	wantReason(t, remove("alice", false, "read:zzz"), scribev1.Reason_REASON_MISSING, "read:zzz", "read:a")
	wantReason(t, remove("bob", true), scribev1.Reason_REASON_MISSING)
	wantReason(t, remove("root", false, "all:*"), scribev1.Reason_REASON_INVALID, "nobody could administer")
	wantReason(t, remove("alice", false), scribev1.Reason_REASON_INVALID)
	if err := remove("alice", false, "read:a"); err != nil {
		t.Fatal(err)
	}
	// Damage can be taken away, and granted anew.
	if _, err := store.Commit(t.Context(), kv.Put(accessPrefix+access.GrantKey("alice"), []byte{0xff})); err != nil {
		t.Fatal(err)
	}
	wantReason(t, remove("alice", false, "role:web"), scribev1.Reason_REASON_CORRUPT)
	list, err := c.ListGrants(t.Context(), &scribev1.ListGrantsRequest{Limit: 2})
	if err != nil || !slices.Equal(list.GetDamaged(), []string{"alice"}) || len(list.GetGrants()) != 1 || !list.GetMore() || list.GetNext() != "role:web" {
		t.Errorf("%v, %v", list, err)
	}
	if list, err = c.ListGrants(t.Context(), &scribev1.ListGrantsRequest{After: list.GetNext()}); err != nil || len(list.GetGrants()) != 1 || list.GetGrants()[0].GetPrincipal() != "root" {
		t.Errorf("%v, %v", list, err)
	}
	if g := grant(t, c, "alice", "read:c"); !slices.Equal(g.GetRules(), []string{"read:c"}) {
		t.Errorf("alice has %q", g.GetRules())
	}
	if err := remove("alice", true); err != nil {
		t.Fatal(err)
	}
	if !stored(t, c).Closed() {
		t.Error("the cell is open")
	}
}

// TestHintsInAClosedCell: errors suggest no names, since the control plane does not know who reads them.
func TestHintsInAClosedCell(t *testing.T) {
	c := start(t, newStore(t), nil)
	create(t, c, "payments")
	get := func() error {
		_, err := c.GetCategory(t.Context(), &scribev1.GetCategoryRequest{Name: "payment"})
		return err
	}
	watchUntil(t, c, func(*scribev1.WatchCategoriesResponse) bool { return true })
	if err := get(); !strings.Contains(err.Error(), "payments") {
		t.Errorf("an open cell suggests nothing: %v", err)
	}
	grant(t, c, "root", "all:*")
	watchRecords(t, c, func(m *scribev1.WatchAccessResponse) bool { return len(m.GetUpdated()) > 0 })
	if err := get(); strings.Contains(err.Error(), "payments") {
		t.Errorf("a closed cell suggests names: %v", err)
	}
}

func watchUntil(t *testing.T, c *ControlPlane, enough func(*scribev1.WatchCategoriesResponse) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_ = c.WatchCategories(ctx, &scribev1.WatchCategoriesRequest{}, func(m *scribev1.WatchCategoriesResponse) error {
		if len(m.GetUpdated()) > 0 && enough(m) {
			cancel()
		}
		return nil
	})
}

// watchRecords watches until a message is enough, and returns it.
func watchRecords(t *testing.T, c *ControlPlane, enough func(*scribev1.WatchAccessResponse) bool) (last *scribev1.WatchAccessResponse) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_ = c.WatchAccess(ctx, &scribev1.WatchAccessRequest{}, func(m *scribev1.WatchAccessResponse) error {
		if last == nil && enough(m) {
			last = m
			cancel()
		}
		return nil
	})
	if last == nil {
		t.Fatal("the watch does not bring it")
	}
	return last
}

// TestWatchAccess: a watch brings damaged records as they are, so that they deny.
func TestWatchAccess(t *testing.T) {
	store := newStore(t)
	if _, err := store.Commit(t.Context(), kv.Put(accessPrefix+access.GrantKey("alice"), []byte{0xff})); err != nil {
		t.Fatal(err)
	}
	c := start(t, store, nil)
	m := watchRecords(t, c, func(m *scribev1.WatchAccessResponse) bool { return m.GetSynced() })
	if len(m.GetUpdated()) != 1 || m.GetUpdated()[0].GetKey() != "grant/alice" || string(m.GetUpdated()[0].GetValue()) != "\xff" {
		t.Errorf("%v", m)
	}
}

// TestUnprovenMembers: a cell in which members can't be told from clients does not close.
func TestUnprovenMembers(t *testing.T) {
	for proven, want := range map[bool]scribev1.Reason{false: scribev1.Reason_REASON_INVALID, true: 0} {
		c := start(t, newStore(t), func(cfg *Config, _ *Deps) { cfg.MembersProven = proven })
		for i := range 2 {
			_, err := c.Join(t.Context(), &scribev1.JoinRequest{Member: &scribev1.Member{Id: fmt.Sprint(i), Roles: []scribev1.Role{scribev1.Role_ROLE_BATCHER}}})
			if err != nil {
				t.Fatal(err)
			}
		}
		_, err := c.IssueToken(t.Context(), &scribev1.IssueTokenRequest{Rules: []string{"all:*"}})
		wantReason(t, err, want)
	}
}

// TestTending: keys are replaced in time, and what has ended goes; nothing else does.
func TestTending(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t, newStore(t), nil)
		issue(t, c, "admin", 0, "all:*")
		short, _ := issue(t, c, "", time.Hour, "read:a")
		_, long := issue(t, c, "", 20*24*time.Hour, "read:a")
		<-time.After(keyInterval + 2*tendInterval)
		s := stored(t, c)
		if id, _ := s.NewestKey(); id != 2 || s.Tokens() != 3 {
			t.Errorf("after a day: key %d, %d tokens", id, s.Tokens())
		}
		if _, cause := s.Authenticate(short, time.Now()); cause != access.Expired {
			t.Errorf("a token that has expired: %q", cause)
		}
		<-time.After(tokenGrace)
		s = stored(t, c)
		if id, _ := s.NewestKey(); id != 9 || s.Tokens() != 2 {
			t.Errorf("after a week: key %d, %d tokens", id, s.Tokens())
		}
		if _, err := c.RevokeToken(t.Context(), &scribev1.RevokeTokenRequest{Id: long}); err != nil {
			t.Error(err)
		}
		a, err := c.readAccess(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		keys := 0
		for key := range a.records {
			if strings.HasPrefix(key, "key/") {
				keys++
			}
		}
		if most := int(keyGrace/keyInterval) + 2; keys > most || keys < most-2 {
			t.Errorf("%d keys are kept", keys)
		}
	})
}

// TestRacingAdministrators: of two changes that together would leave nobody, one is refused.
func TestRacingAdministrators(t *testing.T) {
	c := start(t, newStore(t), nil)
	grant(t, c, "a", "all:*")
	grant(t, c, "b", "all:*")
	errs := make(chan error, 2)
	for _, name := range []string{"a", "b"} {
		go func() {
			_, err := c.RemoveGrants(t.Context(), &scribev1.RemoveGrantsRequest{Principal: name, All: true})
			errs <- err
		}()
	}
	first, second := <-errs, <-errs
	if (first == nil) == (second == nil) || !stored(t, c).HasAdministrator(time.Now()) {
		t.Errorf("%v and %v", first, second)
	}
}
