package access

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"scribe/columnar/schema"
	"scribe/internal/format/record"
	"scribe/internal/role/restrict"
	"scribe/internal/transport/principal"
	scribev1 "scribe/proto/scribe/v1"
)

// TestRestrictions: of several rules each shows what it shows, one without a limit lifts the others, and a limited rule is no right to anything else.
func TestRestrictions(t *testing.T) {
	records := map[string][]byte{}
	for name, rules := range map[string][]string{
		"alice":          {"read:pay* where region = 'eu'", "query:payments mask card", "role:us", "write:other"},
		"role:us":        {"read:payments where region = 'us'", "read,query:free"},
		"bob":            {"read:payments where region = 'eu'", "read:owner=shop"},
		"carol":          {"read:* where x = 1"},
		"role:of-issuer": {"read:payments hide card"},
	} {
		key, value := grantOf(t, name, rules...)
		records[key] = value
	}
	_, id := addToken(t, records, "alice", nil, "read:payments hide amount")
	s := setOf(t, records)
	client := func(name string) principal.Principal { return principal.Principal{Kind: principal.Client, Name: name} }
	token := principal.Principal{Kind: principal.Client, Name: "alice", Token: id}
	issued := client("dave")
	issued.Issued = &principal.Issued{Roles: []string{"role:of-issuer"}, Expires: noon.AddDate(1, 0, 0)}
	for _, c := range []struct {
		of              principal.Principal
		what            Permission
		category, owner string
		cause           Cause
		limits          string
	}{
		{client("alice"), Read, "payments", "", Allowed, "where region = 'eu'; where region = 'us'"},
		{client("alice"), Read, "payroll", "", Allowed, "where region = 'eu'"},
		{client("alice"), Query, "payments", "", Allowed, "mask card"},
		{client("alice"), Query, "payroll", "", NoRule, ""},
		{client("alice"), Read, "free", "", Allowed, ""},
		{client("alice"), Write, "payments", "", NoRule, ""},
		{client("alice"), Group, "payments", "", NoRule, ""},
		{client("alice"), Visible, "payments", "", Allowed, "mask card; where region = 'eu'; where region = 'us'"},
		{client("bob"), Read, "payments", "bank", Allowed, "where region = 'eu'"},
		{client("bob"), Read, "payments", "shop", Allowed, ""},
		{client("carol"), Read, "anything", "", Allowed, "where x = 1"},
		{client("carol"), Read, "", "", NoRule, ""}, // not a right to the cell as a whole
		{client("carol"), Visible, "", "", NoRule, ""},
		{token, Read, "payments", "", Allowed, "hide amount"},
		{token, Read, "payroll", "", NoRule, ""},
		{issued, Read, "payments", "", Allowed, "hide card"},
		{principal.Principal{Kind: principal.Member, Name: "m"}, Read, "payments", "", Allowed, ""},
	} {
		if cause := s.Decide(c.of, c.what, c.category, c.owner, noon); cause != c.cause {
			t.Errorf("%s %v %q of %q: %q, want %q", c.of.Name, c.what, c.category, c.owner, cause, c.cause)
		}
		limited, cause := s.DecideLimits(c.of, c.what, c.category, c.owner, noon)
		if got := strings.Join(limited.Texts(), "; "); got != c.limits || cause != c.cause {
			t.Errorf("%s %v %q of %q is limited to %q, %q; want %q", c.of.Name, c.what, c.category, c.owner, got, cause, c.limits)
		}
		if again, _ := s.DecideLimits(c.of, c.what, c.category, c.owner, noon); again != limited {
			t.Errorf("%s %v %q: the restriction is made again", c.of.Name, c.what, c.category)
		}
		e := s.Explain(c.of, c.what, c.category, c.owner, noon)
		if e.Allowed != (c.cause == Allowed) || strings.Join(e.Limits, "; ") != c.limits || e.Allowed && c.limits != "" && !strings.Contains(e.Rule, " ") {
			t.Errorf("%s %v %q: %+v", c.of.Name, c.what, c.category, e)
		}
	}
	if !s.HasLimits(client("alice"), noon) || !s.HasLimits(issued, noon) || s.HasLimits(client("nobody"), noon) || s.DecideAny(client("carol"), Read, noon) != Allowed {
		t.Error("who has limited rules is not told")
	}
	if free := setOf(t, recordsOf(t, "x read:a")); free.HasLimits(client("x"), noon) {
		t.Error("who has none has limits")
	}
}

// TestOlderProgramsDeny: a program that knows no limits takes what stands behind the colon for a pattern. It must not be a valid one.
func TestOlderProgramsDeny(t *testing.T) {
	for _, rule := range []string{"read:payments where region = 'eu'", "read:pay* mask card", "read,query:* hide a", `read:a hide "b*"`, "read:a where x like 'b*'"} {
		r, err := ParseRule(rule)
		if err != nil {
			t.Fatal(err)
		}
		_, pattern, _ := strings.Cut(r.String(), ":")
		name, star := strings.CutSuffix(pattern, "*")
		if err := record.ValidateCategory(name); err == nil || star || strings.HasPrefix(pattern, ownerPrefix) {
			t.Errorf("%q: an older program reads the pattern %q", rule, pattern)
		}
	}
	for rule, refused := range map[string]bool{
		"read:owner=shop where region = 'eu'": true, "read:owner=shop mask card": true, "read:owner=shop": false, "read:a where x = 1": false, "read:owner=Where Ltd": false,
	} {
		if err := CheckNewRule(rule); (err != nil) != refused {
			t.Errorf("%q: %v", rule, err)
		}
	}
}

// TestRestrictedTickets: a ticket is good only for who is limited as when it was given.
func TestRestrictedTickets(t *testing.T) {
	records := recordsOf(t, "alice read:a")
	records[KeyKey(1)] = encode(t, &scribev1.TicketKey{Id: 1, Secret: make([]byte, KeyBytes), CreatedAt: 1})
	s := setOf(t, records)
	alice := principal.Principal{Kind: principal.Client, Name: "alice"}
	eu, us := restrictionOf(t, "where region = 'eu'"), restrictionOf(t, "where region = 'us'")
	mine := samplePointer(nil)
	tickets := map[*restrict.Restriction][]byte{}
	for _, r := range []*restrict.Restriction{nil, eu, us} {
		tickets[r] = s.SignTicket(alice, "a", Place{Shard: 1, LSN: 2}, mine, Limits{r, 7}, noon)
	}
	if len(tickets[nil]) != ticketLen || tickets[nil][0] != ticketVersion || len(tickets[eu]) == ticketLen || tickets[eu][0] == ticketVersion {
		t.Errorf("tickets of %d and %d bytes: an older read proxy must refuse the restricted one, and take the other", len(tickets[nil]), len(tickets[eu]))
	}
	for given, ticket := range tickets {
		for now := range tickets {
			want := OldRights
			if given == now {
				want = Allowed
			}
			if at, cause := s.CheckTicket(ticket, alice, "a", mine, now, noon); cause != want || want == Allowed && at.LSN != 2 {
				t.Errorf("given under %v, used under %v: %q, want %q", given.Texts(), now.Texts(), cause, want)
			}
		}
	}
	// One that has ended is told so, whatever its reader is limited to now: who hears of other limits asks again with it.
	if _, cause := s.CheckTicket(tickets[eu], alice, "a", mine, us, noon.Add(TicketTTL)); cause != OldTicket {
		t.Errorf("ended, and under other limits: %q", cause)
	}
	if SchemaOf(tickets[eu]) != 7 || SchemaOf(tickets[nil]) != 0 {
		t.Errorf("the version of the schema in tickets is %d and %d", SchemaOf(tickets[eu]), SchemaOf(tickets[nil]))
	}
	for i := range tickets[eu] {
		changed := slices.Clone(tickets[eu])
		changed[i] ^= 1
		for _, now := range []*restrict.Restriction{nil, eu, us} {
			if _, cause := s.CheckTicket(changed, alice, "a", mine, now, noon); cause == Allowed {
				t.Errorf("byte %d changed", i)
			}
		}
	}
	// Without the digest, as one of the first version.
	short := append(slices.Clone(tickets[eu][:ticketHead]), tickets[eu][ticketHead+ticketLimits:]...)
	short[0] = ticketVersion
	if _, cause := s.CheckTicket(short, alice, "a", mine, nil, noon); cause != BadTicket {
		t.Errorf("a ticket whose digest was taken out: %q", cause)
	}
}

func restrictionOf(t testing.TB, texts ...string) *restrict.Restriction {
	t.Helper()
	limits := make([]restrict.Limit, len(texts))
	for i, text := range texts {
		var err error
		if limits[i], err = restrict.ParseLimit(text); err != nil {
			t.Fatal(err)
		}
	}
	return restrict.New(limits...)
}

// TestSealedPointer: a reader with a restriction can't compare the checksum of a block with what it makes up; the read proxy gets the pointer that was stored.
func TestSealedPointer(t *testing.T) {
	records := recordsOf(t, "alice read:a")
	keyRecord(t, records, 1)
	s, limited, mine, alice := setOf(t, records), restrictionOf(t, "hide card"), samplePointer(nil), client("alice")
	seen := map[string]bool{}
	for lsn := range uint64(4) {
		at := Place{Shard: 1, LSN: lsn}
		sealed := s.SealPointer(mine, at, limited)
		if bytes.Equal(sealed, mine) || len(sealed) != len(mine) || seen[string(sealed)] {
			t.Errorf("at LSN %d the pointer is %x, it was %x", lsn, sealed, mine)
		}
		seen[string(sealed)] = true
		ticket := s.SignTicket(alice, "a", at, sealed, Limits{limited, 7}, noon)
		if _, cause := s.CheckTicket(ticket, alice, "a", sealed, limited, noon); cause != Allowed {
			t.Errorf("the ticket of a sealed pointer: %v", cause)
		}
		if got := s.UnsealPointer(ticket, sealed); !bytes.Equal(got, mine) {
			t.Errorf("opened again it is %x, it was %x", got, mine)
		}
	}
}

// TestGoldenTicket: tickets of both versions are as docs/format/access.md says, byte by byte: read streams and read proxies of several versions exchange them.
func TestGoldenTicket(t *testing.T) {
	records := recordsOf(t, "alice read:a")
	keyRecord(t, records, 3)
	s, alice, at := setOf(t, records), client("alice"), Place{Shard: 5<<32 | 1, LSN: 9}
	for want, limits := range map[string]Limits{
		"010300000080234b6b000000000100000005000000090000000000000041fb7d66e65c274dd7cff0c094fe03ab":                                         {},
		"020300000080234b6b000000000100000005000000090000000000000012d7e653195a404de9602f6f93443539070000001a8a7698e93e92ab40154b0ea4b22b61": {restrictionOf(t, "where region = 'eu' mask card"), 7},
	} {
		if got := hex.EncodeToString(s.SignTicket(alice, "a", at, samplePointer(nil), limits, noon)); got != want {
			t.Errorf("%q: %s, want %s", limits.Restriction.Texts(), got, want)
		}
	}
}

// TestManyLimits: more different limits than are allowed for one category let nothing be read, whether by one record or by several, and the same limit twice is one.
func TestManyLimits(t *testing.T) {
	var mine []string
	for i := range restrict.MaxLimits {
		mine = append(mine, fmt.Sprintf("read:a where x = %d", i))
	}
	records := map[string][]byte{}
	for name, rules := range map[string][]string{"alice": append(slices.Clone(mine), mine[0]), "bob": append(slices.Clone(mine), "role:more"), "role:more": {"read:* mask x"}} {
		key, value := grantOf(t, name, rules...)
		records[key] = value
	}
	s := setOf(t, records)
	of, err := schema.Parse([]byte("format: json\nfields: [{name: x, type: int64}]\n"))
	if err != nil {
		t.Fatal(err)
	}
	of.Version = 1
	for name, limits := range map[string]int{"alice": restrict.MaxLimits, "bob": restrict.MaxLimits + 1} {
		r, cause := s.DecideLimits(client(name), Read, "a", "", noon)
		_, err := restrict.Compile(of, r)
		if cause != Allowed || len(r.Texts()) != limits || errors.Is(err, restrict.ErrInapplicable) != (limits > restrict.MaxLimits) {
			t.Errorf("%s: %q, %d limits, %v", name, cause, len(r.Texts()), err)
		}
	}
	for name, c := range map[string]struct {
		rules    []string
		category string
		most     int
	}{
		"of one category":       {mine, "a", restrict.MaxLimits},
		"with a prefix":         {append(slices.Clone(mine), "read,query:* mask x", "read:b mask y"), "a", restrict.MaxLimits + 1},
		"of different ones":     {[]string{"read:a mask x", "read:b mask y", "query:a mask z"}, "a", 1},
		"prefixes of one":       {[]string{"read:web.* mask x", "read:web.eu* mask y", "read:web.eu.1 mask z", "read:web.us* mask z"}, "web.eu.1", 3},
		"a star alone":          {[]string{"read:* mask x", "read:* mask y"}, "a", 2},
		"the same, and no rule": {[]string{"read:a mask x", "read:a* mask x", "role:x"}, "a", 1},
	} {
		if category, most := MostLimits(c.rules); category != c.category || most != c.most {
			t.Errorf("%s: %d of %q, want %d of %q", name, most, category, c.most, c.category)
		}
	}
	// The bytes are counted as records come, are replaced and go.
	n := s.LimitBytes()
	key, value := grantOf(t, "alice", "read:a mask x")
	s, _ = s.Apply(map[string][]byte{key: value}, nil)
	if got, want := s.LimitBytes(), n-LimitBytesOf(mine)+len("mask x"); got != want {
		t.Errorf("%d bytes, want %d", got, want)
	}
	_, id := addToken(t, records, "alice", nil, "read:payments hide amount")
	s, _ = s.Apply(map[string][]byte{TokenKey(id): records[TokenKey(id)]}, nil)
	s, _ = s.Apply(map[string][]byte{TokenKey(id): records[TokenKey(id)]}, []string{key})
	if got, want := s.LimitBytes(), LimitBytesOf(mine)+len("mask x")+len("hide amount"); got != want {
		t.Errorf("%d bytes, want %d", got, want)
	}
}

// BenchmarkLimits: who has no limits pays nothing for those of others, and who has some does not make them again.
//
//	go test -run '^$' -bench Limits -benchmem -count=6 ./internal/cell/access
func BenchmarkLimits(b *testing.B) {
	records := map[string][]byte{}
	for name, rules := range map[string][]string{"all": {"read:web.*"}, "one": {"read:web.* mask x"}, "several": {"read:web.* mask x", "read:web.* mask y", "role:r"}, "role:r": {"read:* where z = 1"}} {
		key, value := grantOf(b, name, rules...)
		records[key] = value
	}
	s := setOf(b, records)
	for _, name := range []string{"all", "one", "several"} {
		b.Run("of="+name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, cause := s.DecideLimits(client(name), Read, "web.access", "", noon); cause != Allowed {
					b.Fatal(cause)
				}
			}
		})
	}
}

// TestLimitsAreFree: the decision about who has no limits allocates nothing, and that about who has one makes no restriction.
func TestLimitsAreFree(t *testing.T) {
	s := setOf(t, recordsOf(t, "all read:web.*"))
	key, value := grantOf(t, "limited", "read:web.* mask x")
	s, _ = s.Apply(map[string][]byte{key: value}, nil)
	for name, most := range map[string]float64{"all": 0, "limited": 1} { // the list of whose rules count may be on the heap
		if n := testing.AllocsPerRun(100, func() { s.DecideLimits(client(name), Read, "web.access", "", noon) }); n > most {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}
