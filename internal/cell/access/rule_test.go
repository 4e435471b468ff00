package access

import (
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
	} {
		r, err := ParseRule(text)
		if err != nil || r.String() != normal {
			t.Errorf("%q: %v, %v; want %q", text, r, err, normal)
		}
		again, err := ParseRule(normal)
		if err != nil || again != r {
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
	f.Fuzz(func(t *testing.T, text string) {
		r, err := ParseRule(text)
		if err != nil {
			return
		}
		if again, err := ParseRule(r.String()); err != nil || again != r {
			t.Errorf("%q is %v, which is %v, %v", text, r, again, err)
		}
	})
}
