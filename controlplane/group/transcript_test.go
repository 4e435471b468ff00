package group

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"scribe/internal/format/bucket"
)

// TestAssignment runs the transcripts in testdata/assignment. To rewrite their answers:
//
//	go test ./controlplane/group -run TestAssignment -rewrite
//
// Commands, each with an optional at=DURATION since the start. Each but commit prints the group after it:
//
//	init [buckets=8] [useful=8]   members have a TTL of 10 s and a minute to give back buckets
//	join NAME                     a member joins, or a process is started again under its name
//	leave NAME
//	heartbeat NAME [BUCKET ...]   the member says that it lives, gives back buckets, and hears what it has
//	commit NAME [BUCKET ...]      of these buckets, or of all that it heard of last, in the generation of then
//	check                         the coordinator looks who is silent, and who is late to give back buckets
//	useful N                      so many buckets can have messages now
//	reset                         the positions were changed: each owner is granted its buckets anew
//
// A group is printed as its generation and, for each member with its epoch, the buckets that it owns, in brackets the generation in which
// those were granted, and which it is to give back, and for how many others it waits.
func TestAssignment(t *testing.T) {
	datadriven.Walk(t, "testdata/assignment", func(t *testing.T, path string) {
		s := &transcript{}
		datadriven.RunTest(t, path, s.run)
	})
}

type transcript struct {
	group    *Group
	liveness *Liveness
	now      time.Time
	// heard is what each member heard last, by name; that of one which is gone stays.
	heard map[string]heardAssignment
}

type heardAssignment struct {
	epoch, generation uint64
	buckets           bucket.Set
}

func (s *transcript) run(t *testing.T, d *datadriven.TestData) string {
	var words []string
	buckets, useful := uint32(8), uint32(8)
	for _, arg := range d.CmdArgs {
		switch arg.Key {
		case "at":
			after, err := time.ParseDuration(arg.Vals[0])
			if err != nil {
				d.Fatalf(t, "%v", err)
			}
			s.now = at(after)
		case "buckets":
			buckets = parseNumber(t, d, arg.Vals[0])
		case "useful":
			useful = parseNumber(t, d, arg.Vals[0])
		default:
			words = append(words, arg.Key)
		}
	}
	name := ""
	if len(words) > 0 {
		name = words[0]
	}
	switch d.Cmd {
	case "init":
		s.group, s.liveness, s.now, s.heard = testGroup(buckets, useful), NewLiveness(), at(0), map[string]heardAssignment{}
		return ""
	case "join":
		epoch := s.group.Join(testMember(name))
		s.liveness.NoteSpoke(epoch, s.now, nil)
		s.hear(name, epoch)
	case "leave":
		s.group.RemoveMembers(s.heard[name].epoch)
	case "heartbeat":
		h := s.heard[name]
		if s.group.Member(h.epoch) == nil {
			return "refused: the membership has ended\n"
		}
		s.liveness.NoteSpoke(h.epoch, s.now, &MemberStatus{})
		s.group.Release(h.epoch, h.generation, s.parseBuckets(t, d, words[1:]))
		s.hear(name, h.epoch)
	case "commit":
		h := s.heard[name]
		set := h.buckets
		if len(words) > 1 {
			set = s.parseBuckets(t, d, words[1:])
		}
		switch err := s.group.CheckOwner(h.epoch, h.generation, set); {
		case s.group.Member(h.epoch) == nil:
			return "refused: the membership has ended\n"
		case err != nil:
			return fmt.Sprintf("refused: %v\n", err)
		default:
			return fmt.Sprintf("committed %v\n", set.Slice())
		}
	case "check":
		return s.check() + s.print()
	case "useful":
		s.group.SetUseful(parseNumber(t, d, name))
	case "reset":
		s.group.RegrantAll()
	default:
		d.Fatalf(t, "unknown command")
	}
	return s.print()
}

// check does what the coordinator does when it looks at a group.
func (s *transcript) check() string {
	var out strings.Builder
	f := s.liveness.Check(s.group, s.now)
	if f.Write {
		s.liveness.NoteStored(s.group, s.liveness.WriteBeats(s.group), s.now)
	}
	for _, epoch := range f.Silent {
		fmt.Fprintf(&out, "expired: %s\n", s.group.Member(epoch).Name)
	}
	for _, epoch := range f.Overdue {
		fmt.Fprintf(&out, "late to give back buckets: %s\n", s.group.Member(epoch).Name)
	}
	s.group.RemoveMembers(f.Silent...)
	for _, epoch := range f.Overdue {
		s.group.TakeRevoked(epoch)
	}
	return out.String()
}

func (s *transcript) hear(name string, epoch uint64) {
	a := s.group.Assignment(epoch)
	h := heardAssignment{epoch: epoch, generation: a.Generation, buckets: bucket.NewSet(s.group.Scheme.Buckets)}
	for _, set := range a.Grants {
		h.buckets.AddAll(set)
	}
	s.heard[name] = h
}

func (s *transcript) print() string {
	var out strings.Builder
	fmt.Fprintf(&out, "generation %d\n", s.group.Generation)
	for _, m := range s.group.Members {
		a := s.group.Assignment(m.Epoch)
		fmt.Fprintf(&out, "  %s/%d:", m.Name, m.Epoch)
		generations := make([]uint64, 0, len(a.Grants))
		for g := range a.Grants {
			generations = append(generations, g)
		}
		slices.Sort(generations)
		for _, g := range generations {
			fmt.Fprintf(&out, " %s [%d]", joinNumbers(a.Grants[g]), g)
		}
		if len(generations) == 0 {
			out.WriteString(" none")
		}
		if !a.Revoked.Empty() {
			fmt.Fprintf(&out, ", to give back %s", joinNumbers(a.Revoked))
		}
		if a.Pending > 0 {
			fmt.Fprintf(&out, ", waits for %d", a.Pending)
		}
		out.WriteByte('\n')
	}
	return out.String()
}

func joinNumbers(set bucket.Set) string {
	return strings.Trim(fmt.Sprint(set.Slice()), "[]")
}

func (s *transcript) parseBuckets(t *testing.T, d *datadriven.TestData, words []string) bucket.Set {
	set := bucket.NewSet(s.group.Scheme.Buckets)
	for _, w := range words {
		set.Add(parseNumber(t, d, w))
	}
	return set
}

func parseNumber(t *testing.T, d *datadriven.TestData, s string) uint32 {
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil {
		d.Fatalf(t, "%v", err)
	}
	return uint32(n)
}
