package engines

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"scribe/storage/kv"
)

// runPlanner takes all steps of a planner as if each succeeded, and returns how many relocations there were.
func runPlanner(t *testing.T, p *Planner) (relocations int) {
	t.Helper()
	for n := 0; ; n++ {
		s, wait, ok := p.Next(0)
		if !ok {
			if wait != 0 {
				t.Fatalf("the planner waits for %v, although nothing failed", wait)
			}
			return relocations
		}
		if n > 100_000 {
			t.Fatalf("the planner does not end: %+v", s)
		}
		switch s.Action {
		case Learn:
			p.Restore(s.Category, Home{Engine: "main"})
			continue
		case Relocate:
			relocations++
		default:
		}
		p.Done(s)
	}
}

// An engine that is added gets its share, and nothing else moves; one that is drained gives its share to the others, and nothing else moves.
func TestPlannerMovesLittle(t *testing.T) {
	const categories = 900
	p := NewPlanner("main")
	for id := range uint32(categories) {
		p.AddCategory(id + 1)
	}
	list := List{{Name: "main"}}
	if n := runPlanner(t, p); n != 0 {
		t.Errorf("with one engine %d categories moved", n)
	}
	for i, name := range []string{"b", "c"} {
		var err error
		if list, err = list.Add(name, 1); err != nil {
			t.Fatal(err)
		}
		p.SetEngines(list)
		homes, _ := p.Homes()
		share, moved := categories/(i+2), runPlanner(t, p)
		if moved < share*3/4 || moved > share*5/4 {
			t.Errorf("after %q was added %d categories moved; want about %d (before: %v)", name, moved, share, homes)
		}
		if after, pending := p.Homes(); after[name] != moved || pending != 0 {
			t.Errorf("after %q was added the homes are %v, %d pending, want all %d that moved in it", name, after, pending, moved)
		}
	}
	before, _ := p.Homes()
	list, err := list.Drain("b", 2)
	if err != nil {
		t.Fatal(err)
	}
	p.SetEngines(list)
	if moved := runPlanner(t, p); moved != before["b"] {
		t.Errorf("%d categories moved, want the %d of the drained engine", moved, before["b"])
	}
	if after, _ := p.Homes(); after["b"] != 0 {
		t.Errorf("a drained engine has %d categories", after["b"])
	}
}

// What was begun is finished first, with the mark that was stored; a category whose step failed rests, and the others go on.
func TestPlannerResumesAndRetries(t *testing.T) {
	p := NewPlanner("main")
	p.Restore(7, Home{Engine: "b", Mark: 4, From: "main"})
	list, err := List{{Name: "main"}}.Add("b", 1)
	if err != nil {
		t.Fatal(err)
	}
	p.SetEngines(list)
	s, _, ok := p.Next(0)
	if want := (Step{Action: Relocate, Category: 7, Home: Home{Engine: "b", Mark: 4, From: "main"}}); !ok || s != want {
		t.Fatalf("the first step is %+v, want %+v", s, want)
	}
	p.Failed(s, 0)
	if s, wait, ok := p.Next(time.Second); ok || wait != RetryAfter-time.Second {
		t.Errorf("after a failure the next step is %+v, %v, wait %v", s, ok, wait)
	}
	if again, _, ok := p.Next(RetryAfter); !ok || again != s {
		t.Errorf("after its rest the step is %+v, %v, want %+v", again, ok, s)
	}
	p.Done(s)
	if s, _, _ := p.Next(RetryAfter); s.Action != Settle || s.Home != (Home{Engine: "b", Mark: 4}) {
		t.Errorf("after the relocation the step is %+v", s)
	}
}

// The root is never drained, and lists are bounded.
func TestListChanges(t *testing.T) {
	l := List{{Name: "main"}}
	if _, err := l.Drain("main", 1); !errors.Is(err, ErrRoot) {
		t.Errorf("the root is drained: %v", err)
	}
	if _, err := l.Drain("b", 1); !errors.Is(err, ErrUnknown) {
		t.Errorf("an engine that is not there is drained: %v", err)
	}
	if _, err := l.Add("B", 1); err == nil {
		t.Error("a name that is no name of an engine is added")
	}
	var err error
	for i := 0; err == nil; i++ {
		l, err = l.Add(fmt.Sprint("e", i), 1)
	}
	if !errors.Is(err, ErrMany) {
		t.Errorf("the list ends with %v", err)
	}
}

// Records come back, and what can't be is damage.
func TestRecords(t *testing.T) {
	l, err := List{{Name: "main"}}.Add("b", 5)
	if err == nil {
		l, err = l.Drain("b", 6)
	}
	if err != nil {
		t.Fatal(err)
	}
	value, err := l.Encode()
	if want := `{"version":1,"engines":[{"name":"main"},{"name":"b","added_at":5,"draining_since":6}]}`; err != nil || string(value) != want {
		t.Errorf("the list is stored as %s, %v; want %s", value, err, want)
	}
	if got, err := DecodeList(value, "main"); err != nil || len(got) != 2 || got[1] != l[1] {
		t.Errorf("the list came back as %v, %v", got, err)
	}
	h := Home{Engine: "b", Mark: 3, From: "main"}
	value, err = h.Encode()
	if want := `{"version":1,"engine":"b","mark":3,"from":"main"}`; err != nil || string(value) != want {
		t.Errorf("the home is stored as %s, %v; want %s", value, err, want)
	}
	if id, got, err := DecodeHome("engine-home/0000000012", value); err != nil || id != 12 || got != h {
		t.Errorf("the home came back as %d, %v, %v", id, got, err)
	}
	for _, bad := range []string{
		``, `{}`, `{"version":2,"engines":[{"name":"main"}]}`, `{"version":1,"engines":[]}`, `{"version":1,"engines":[{"name":"b"}]}`,
		`{"version":1,"engines":[{"name":"main"},{"name":"main"}]}`, `{"version":1,"engines":[{"name":"main","draining_since":1}]}`,
		`{"version":1,"engines":[{"name":"main"},{"name":"../x"}]}`,
	} {
		if l, err := DecodeList([]byte(bad), "main"); !errors.Is(err, kv.ErrCorrupt) {
			t.Errorf("%s is the list %v, %v", bad, l, err)
		}
	}
	for key, bad := range map[string]string{
		"engine-home/12": `{"version":1,"engine":"b"}`, "engine-home/0000000013": `{"version":1}`, "engine-home/0000000014": `{"version":1,"engine":"b","from":"b","mark":1}`,
		"engine-home/0000000015": `{"version":1,"engine":"b","from":"main"}`, "engine-home/0000000016": `{"version":3,"engine":"b"}`,
	} {
		if _, h, err := DecodeHome(key, []byte(bad)); !errors.Is(err, kv.ErrCorrupt) {
			t.Errorf("%s: %s is the home %v, %v", key, bad, h, err)
		}
	}
}

// FuzzRecords: no value makes a decoder panic, and what it accepts can be stored again.
func FuzzRecords(f *testing.F) {
	f.Add([]byte(`{"version":1,"engines":[{"name":"main"},{"name":"b","draining_since":6}]}`))
	f.Add([]byte(`{"version":1,"engine":"b","mark":3,"from":"main"}`))
	f.Fuzz(func(t *testing.T, value []byte) {
		if l, err := DecodeList(value, "main"); err == nil {
			if _, err := l.Encode(); err != nil {
				t.Error(err)
			}
		}
		if _, h, err := DecodeHome(HomeKey(1), value); err == nil {
			if _, err := h.Encode(); err != nil {
				t.Error(err)
			}
		}
	})
}
