package inputs

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"scribe/internal/format/record"
)

func TestTemplate(t *testing.T) {
	for _, c := range []struct{ text, value, want string }{
		{"access", "", "access"},
		{"syslog.{app}", "sshd", "syslog.sshd"},
		{"syslog.{app}", "", "syslog.none"},
		{"{app}.log", "a/b c", "a_b_c.log"},
		{"{app}", ".hidden", "xhidden"},
		{"{app}-{app}", "é", "x_-__"},
	} {
		tmpl, err := ParseCategoryTemplate(c.text, "app")
		if err != nil {
			t.Fatal(err)
		}
		if got := tmpl.Category(func(string) string { return c.value }); got != c.want {
			t.Errorf("%q with %q is %q, want %q", c.text, c.value, got, c.want)
		}
	}
}

func TestTemplateRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"a.{host}": "{host} is unknown, the fields are {app}, {file}",
		"a.{app":   "not closed",
		"a b":      "category",
		"":         "category",
		".{app}":   "category",
	} {
		if _, err := ParseCategoryTemplate(text, "app", "file"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	if _, err := ParseCategoryTemplate("a.{app}"); err == nil || !strings.Contains(err.Error(), "no fields") {
		t.Errorf("a field where there is none: %v", err)
	}
}

// Whatever a stranger sends, the name is one that a category may have.
func TestTemplateIsAlwaysValid(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tmpl, err := ParseCategoryTemplate(rapid.SampledFrom([]string{"{a}", "x.{a}", "{a}{b}", "{a}.{b}-z", "s.{b}.{a}"}).Draw(t, "template"), "a", "b")
		if err != nil {
			t.Fatal(err)
		}
		values := map[string]string{"a": rapid.String().Draw(t, "a"), "b": strings.Repeat(rapid.String().Draw(t, "b"), rapid.IntRange(1, 100).Draw(t, "n"))}
		if name := tmpl.Category(func(f string) string { return values[f] }); record.ValidateCategory(name) != nil {
			t.Fatalf("%q", name)
		}
	})
}

func TestNames(t *testing.T) {
	n := NewCategoryLimit(2, "rest")
	for i, want := range []string{"a", "b", "a", "rest", "b"} {
		name, ok := n.Allow([]string{"a", "b", "a", "c", "b"}[i])
		if name != want || ok != (want != "rest") {
			t.Errorf("%d: %q, %v", i, name, ok)
		}
	}
}
