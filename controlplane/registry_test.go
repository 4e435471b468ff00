package controlplane

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"pgregory.net/rapid"

	scribev1 "scribe/proto/scribe/v1"
)

// TestRegistry runs the transcripts of testdata/registry. Times are seconds from a beginning; -rewrite writes the results anew.
//
//	new max=N
//	restore id=ID slot=N ttl=S at=S [usable=S]
//	join id=ID ttl=S at=S
//	heartbeat id=ID load=N at=S
//	leave id=ID
//	expire at=S
//	list
func TestRegistry(t *testing.T) {
	datadriven.Walk(t, "testdata/registry", func(t *testing.T, path string) {
		begin := time.Unix(1_000_000, 0)
		show := func(at time.Time) string {
			if at.IsZero() {
				return "never"
			}
			return fmt.Sprint(at.Sub(begin).Seconds())
		}
		var r *memberRegistry
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			var id string
			number := func(key string) (n int) {
				d.MaybeScanArgs(t, key, &n)
				return n
			}
			d.MaybeScanArgs(t, "id", &id)
			seconds := func(key string) time.Duration { return time.Duration(number(key)) * time.Second }
			now := begin.Add(seconds("at"))
			switch d.Cmd {
			case "new":
				r = newRegistry(uint32(number("max")))
				return ""
			case "restore":
				var usable time.Time
				if d.HasArg("usable") {
					usable = begin.Add(seconds("usable"))
				}
				r.restoreMember(&scribev1.Member{Id: id, Slot: uint32(number("slot"))}, seconds("ttl"), now, usable)
				return ""
			case "join":
				slot, free := r.reserveSlot(id, now)
				if slot == 0 {
					return "no slot before " + show(free)
				}
				r.beginLease(&scribev1.Member{Id: id, Slot: slot}, seconds("ttl"), now)
				return fmt.Sprintf("slot %d", slot)
			case "heartbeat":
				load := uint32(number("load"))
				change, ok := r.renewLease(&scribev1.HeartbeatRequest{Id: id, Load: load, Loads: []*scribev1.RoleLoad{{Role: scribev1.Role_ROLE_BATCHER, Load: load}}}, now)
				if !ok {
					return "no lease"
				}
				return map[loadChange]string{sameLoad: "same", slightChange: "slight change", clearChange: "clear change"}[change]
			case "announce":
				r.markAnnounced()
				return ""
			case "leave":
				return fmt.Sprintf("slot %d", r.endLease(id))
			case "expire":
				var b strings.Builder
				expired, next := r.expireLeases(now)
				for _, l := range expired {
					fmt.Fprintf(&b, "%s slot %d\n", l.member.GetId(), l.member.GetSlot())
				}
				return b.String() + "next " + show(next)
			case "list":
				var b strings.Builder
				for _, m := range r.listMembers() {
					fmt.Fprintf(&b, "%s slot %d load %d\n", m.GetId(), m.GetSlot(), m.GetLoad())
				}
				return b.String()
			}
			d.Fatalf(t, "unknown command %s", d.Cmd)
			return ""
		})
	})
}

// TestSlotsModel: no slot has two holders; a slot whose lease expired goes to another only when its time is over and no other
// slot is free; an id that comes back before that has its own.
func TestSlotsModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const maxSlot = 4
		r := newRegistry(maxSlot)
		now := time.Unix(1_000_000, 0)
		type kept struct {
			slot   uint32
			usable time.Time // zero while live
		}
		holders := map[string]kept{}
		id := rapid.Map(rapid.IntRange(0, 6), func(i int) string { return fmt.Sprintf("m%d", i) })
		t.Repeat(map[string]func(*rapid.T){
			"join": func(t *rapid.T) {
				n := id.Draw(t, "id")
				slot, free := r.reserveSlot(n, now)
				before, known := holders[n]
				switch {
				case slot == 0 && known:
					t.Fatalf("%s lost its slot %d", n, before.slot)
				case slot == 0:
					for other, h := range holders {
						if !h.usable.IsZero() && !h.usable.After(now) {
							t.Fatalf("no slot for %s, though %s's %d may be taken", n, other, h.slot)
						}
					}
					if len(holders) != maxSlot || !free.After(now) {
						t.Fatalf("no slot for %s before %v, %d of %d are held", n, free, len(holders), maxSlot)
					}
					return
				case known && slot != before.slot:
					t.Fatalf("%s had slot %d, gets %d", n, before.slot, slot)
				}
				for other, h := range holders {
					if other == n || h.slot != slot {
						continue
					}
					if h.usable.IsZero() || h.usable.After(now) || len(holders) != maxSlot {
						t.Fatalf("slot %d of %s (usable %v, now %v) goes to %s with %d of %d held", slot, other, h.usable, now, n, len(holders), maxSlot)
					}
					delete(holders, other)
				}
				r.beginLease(&scribev1.Member{Id: n, Slot: slot}, time.Second, now)
				holders[n] = kept{slot: slot}
			},
			"leave": func(t *rapid.T) {
				n := id.Draw(t, "id")
				if slot := r.endLease(n); slot != holders[n].slot {
					t.Fatalf("%s leaves slot %d, had %d", n, slot, holders[n].slot)
				}
				delete(holders, n)
			},
			"heartbeat": func(t *rapid.T) {
				n := id.Draw(t, "id")
				h, known := holders[n]
				if _, ok := r.renewLease(&scribev1.HeartbeatRequest{Id: n, Load: 1}, now); ok && (!known || !h.usable.IsZero()) {
					t.Fatalf("%s has no lease, but renews it", n)
				}
			},
			"time": func(t *rapid.T) {
				now = now.Add(time.Duration(rapid.IntRange(1, 1500).Draw(t, "ms")) * time.Millisecond)
				expired, _ := r.expireLeases(now)
				for _, l := range expired {
					h := holders[l.member.GetId()]
					h.usable = l.deadline.Add(l.ttl)
					holders[l.member.GetId()] = h
				}
			},
			"": func(t *rapid.T) {
				seen := map[uint32]bool{}
				for _, m := range r.listMembers() {
					if seen[m.GetSlot()] || m.GetSlot() < 1 || m.GetSlot() > maxSlot {
						t.Fatalf("slot %d: %v", m.GetSlot(), r.listMembers())
					}
					seen[m.GetSlot()] = true
				}
			},
		})
	})
}
