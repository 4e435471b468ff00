package access

import (
	"reflect"
	"slices"
	"strings"
	"testing"
)

func TestParseRule(t *testing.T) {
	for text, normal := range map[string]string{
		"write:web.*":               "write:web.*",
		"read,write:web.access":     "write,read:web.access",
		"all:*":                     "all:*",
		"query:owner=payments":      "query:owner=payments",
		"operate:*":                 "operate:*",
		"monitor,operate:*":         "operate,monitor:*",
		"write,read,read:a":         "write,read:a",
		"manage,operate,all:web.*":  "all:web.*",
		"group:*":                   "group:*",
		"read:owner=team/über-data": "read:owner=team/über-data",
		"query,read:payments where region = 'eu' mask card":                    "read,query:payments where region = 'eu' mask card",
		"read:web.* mask b,a,\"Upper\" show _attr where x in ('hide', 'mask')": `read:web.* where x in ('hide', 'mask') mask "Upper", a, b show _attr`,
		`read:* hide "mask" where "mask" > 3 and (hide_it or show(1))`:         `read:* where "mask" > 3 and (hide_it or show(1)) hide "mask"`,
	} {
		r, err := ParseRule(text)
		if err != nil || r.String() != normal {
			t.Errorf("%q: %v, %v; want %q", text, r, err, normal)
		}
		again, err := ParseRule(normal)
		if err != nil || !reflect.DeepEqual(again, r) {
			t.Errorf("%q is not its own normal form: %v, %v", normal, again, err)
		}
	}
	for text, says := range map[string]string{
		"":                                       "PERMISSION:PATTERN",
		"read":                                   "PERMISSION:PATTERN",
		"reed:a":                                 `unknown permission "reed"`,
		":a":                                     `unknown permission ""`,
		"read:":                                  "category",
		"read:-a":                                "category",
		"read:*a":                                "category",
		"read:a*b*":                              "beginning",
		"read:../x":                              "category",
		"write,read:a where x = 1":               "only read and query can be limited",
		"all:a mask x":                           "only read and query can be limited",
		"read:a ":                                "neither where nor hide nor mask",
		"read:a show _key":                       "neither where nor hide nor mask",
		"read:a where":                           "condition",
		"read:a where x = ":                      "condition",
		"read:a where x = 'eu":                   "want where CONDITION",
		"read:a where x = 1 where y = 2":         `"where" stands there twice`,
		"read:a region = 'eu'":                   "want where CONDITION",
		"read:a mask x y":                        "comma",
		"read:a mask x,":                         "name of a column",
		"read:a mask x hide x":                   "both hidden and masked",
		"read:a mask _time":                      "_time",
		"read:a mask x show y":                   "can be shown",
		"read:a mask x, _key show _key":          "both shown and hidden",
		"read:a where x = '\n'":                  "printed",
		"read:owner=":                            "no name",
		"read:owner=a\u00a0b":                    "printed",
		"read:owner=a\x00":                       "character",
		"operate:web.*":                          "operate:*",
		"monitor:web.*":                          "monitor:*",
		"read,operate:owner=x":                   "operate:*",
		"read:" + strings.Repeat("a", 256):       "category",
		"read:owner=" + strings.Repeat("a", 256): "256 bytes",
	} {
		if r, err := ParseRule(text); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%.40q: %v, %v; want an error with %q", text, r, err, says)
		}
	}
}

func TestParseRules(t *testing.T) {
	got, err := ParseRules([]string{"write:b", "read:a", "write:b", "role:web"}, true)
	if err != nil || !slices.Equal(got, []string{"read:a", "role:web", "write:b"}) {
		t.Errorf("%q, %v", got, err)
	}
	_, err = ParseRules([]string{"role:web", "x:a", "read:-"}, false)
	for _, says := range []string{"only principals have roles", `"x"`, `"read:-"`} {
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v does not say %q", err, says)
		}
	}
	many := make([]string, MaxRoles+1)
	for i := range many {
		many[i] = "role:" + string(rune('a'+i))
	}
	if _, err := ParseRules(many, true); err == nil || !strings.Contains(err.Error(), "17 roles") {
		t.Errorf("too many roles: %v", err)
	}
}

func FuzzParseRule(f *testing.F) {
	f.Add("write,read:web.*")
	f.Add("all:owner=x")
	f.Add("read,query:payments where region = 'eu' and not (a or \"mask\") hide a, \"B\" mask card show _key, _attr")
	f.Fuzz(func(t *testing.T, text string) {
		r, err := ParseRule(text)
		if err != nil {
			return
		}
		if again, err := ParseRule(r.String()); err != nil || !reflect.DeepEqual(again, r) {
			t.Errorf("%q is %v, which is %v, %v", text, r, again, err)
		}
	})
}
