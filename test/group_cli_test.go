package test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
)

// TestGroupCommands shares a category among tails, and looks at their group, moves it and deletes it.
func TestGroupCommands(t *testing.T) {
	eachKind(t, func(t *testing.T, c *cell) {
		ok(t, nil, "category", "create", "log", "--server", c.read)
		group := func(args ...string) string {
			t.Helper()
			return string(ok(t, nil, append([]string{"group"}, append(args, "--server", c.read)...)...))
		}
		tail := func(n int) []byte {
			t.Helper()
			return ok(t, nil, "tail", "log", "--group", "workers", "--from", "earliest", "-n", fmt.Sprint(n), "--server", c.read)
		}
		produce(t, c, "log", []byte("1\n2\n3\n4\n"))
		first := tail(2)
		rest := tail(2)
		sameBytes(t, "two lives of a member", append(first, rest...), []byte("1\n2\n3\n4\n"))
		if out := group("list", "--category", "log"); !strings.Contains(out, "workers") || strings.Contains(group("list", "--prefix", "x"), "workers") {
			t.Errorf("the list is %s", out)
		}
		if out := group("describe", "workers", "--buckets"); !strings.Contains(out, "waiting: nothing") || !strings.Contains(out, "COMMITTED BELOW") {
			t.Errorf("the description is %s", out)
		}
		group("reset", "workers", "--to", "earliest")
		if out := group("describe", "workers", "--json"); !strings.Contains(strings.ReplaceAll(out, " ", ""), `"pointers":"`) || strings.Contains(group("describe", "workers"), "waiting: nothing") {
			t.Errorf("after a reset the description is %s", out)
		}
		sameBytes(t, "after a reset", tail(4), []byte("1\n2\n3\n4\n"))
		group("delete", "workers")
		for _, wrong := range []struct {
			code int
			args []string
			says string
		}{
			{3, []string{"group", "describe", "workers"}, `no consumer group "workers"`},
			{3, []string{"group", "delete", "workers"}, `no consumer group "workers"`},
			{2, []string{"group", "reset", "workers", "--to", "then"}, "none of earliest"},
			{2, []string{"group", "reset", "workers"}, "to"},
			{2, []string{"tail", "log", "--group", "workers", "--until-end"}, "--until-end beside --group"},
			{2, []string{"tail", "log", "--group", "workers", "--checkpoint", "f"}, "the group keeps the place"},
			{2, []string{"tail", "log", "--group", "a/b"}, "group"},
		} {
			r := cli(t, nil, append(wrong.args, "--server", c.read)...)
			if r.Code != wrong.code || !bytes.Contains(r.Stderr, []byte(wrong.says)) {
				t.Errorf("%v: exit code %d, %s", wrong.args, r.Code, r.Stderr)
			}
		}
	})
}
