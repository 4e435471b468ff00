package retention

import (
	"errors"
	"strings"
	"testing"
	"time"
)

// mustHalt has a keeper try to lead, which the claim must halt.
func (w *world) mustHalt(owner, claim string) {
	w.Helper()
	_, err := w.lead(w.deps(owner))
	halted, ok := errors.AsType[*HaltedError](err)
	if !ok || halted.Claims != claim {
		w.Fatalf("want a halt at %q, got %v", claim, err)
	}
}

// putClaim puts a claim as it arrives: at any time after its keeper sent it.
func (w *world) putClaim(c storeClaim) {
	w.Helper()
	if err := w.blobs.Put(w.ctx, c.key(), []byte("{}\n")); err != nil {
		w.Fatalf("put a claim: %v", err)
	}
}

// mustReplace has a keeper lead, and claim the store, until no claim of another cell is left.
func (w *world) mustReplace(owner string) {
	w.Helper()
	l := w.mustLead(owner)
	l.run(w.cfg.Grace+2*w.cfg.BoundaryStep, w.cfg.BoundaryStep)
	claims, err := l.t.listClaims(w.ctx)
	if err != nil || len(claims) != 1 || claims[0].cell != l.t.cellName() {
		w.Fatalf("claims: %v, %v", claims, err)
	}
	l.close()
}

// recoveredWorld is an engine as a recovery leaves it: its boundary is the time of the recovery. The claims are in the blob store then.
func recoveredWorld(t *testing.T, claims ...storeClaim) (w *world, recovered int64) {
	t.Helper()
	w = testWorld(t)
	w.clock.Advance(24 * time.Hour)
	recovered, err := w.log.AdvanceBoundary(w.ctx, w.clock.Now())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range claims {
		w.putClaim(c)
	}
	return w, recovered
}

// TestLateClaimOfLostCell: a put whose answer was lost leaves a claim of the lost cell that is newer than the one that was adopted.
func TestLateClaimOfLostCell(t *testing.T) {
	seen := storeClaim{"lost", 1000}
	w, recovered := recoveredWorld(t, seen)
	w.mustHalt("one", seen.key())
	w.cfg.Adopt = seen.key()
	w.mustReplace("one")

	// Nobody gives the flag for ever, nor knows the key of a claim that nobody has seen.
	w.cfg.Adopt = ""
	w.putClaim(storeClaim{"lost", recovered})
	w.mustReplace("one")

	// The cell lives: it goes on to claim.
	alive := storeClaim{"lost", recovered + 1}
	w.putClaim(alive)
	w.mustHalt("one", alive.key())
}

// TestFirstClaimOfLostCellIsLate: at the recovery the store had no claim, so there was nothing to adopt.
func TestFirstClaimOfLostCellIsLate(t *testing.T) {
	w, recovered := recoveredWorld(t)
	w.mustReplace("one")
	w.putClaim(storeClaim{"lost", recovered})
	w.mustReplace("two")
	alive := storeClaim{"lost", recovered + 1}
	w.putClaim(alive)
	w.mustHalt("two", alive.key())
}

// TestLateClaimOfCellThatWasEnded: the same where two cells had the store, and an operator ended one of them.
func TestLateClaimOfCellThatWasEnded(t *testing.T) {
	w, _ := recoveredWorld(t)
	w.mustReplace("one")
	boundary, err := w.log.AdvanceBoundary(w.ctx, 0)
	if err != nil {
		t.Fatal(err)
	}
	w.putClaim(storeClaim{"ended", boundary - 1})
	w.cfg.Adopt = storeClaim{"ended", boundary - 1}.key()
	w.mustReplace("one")
	w.cfg.Adopt = ""
	w.putClaim(storeClaim{"ended", boundary})
	w.mustReplace("one")
}

// TestClaimOfLivingCell: what may come late is no pretext for a cell that has the store, too.
func TestClaimOfLivingCell(t *testing.T) {
	lost, alive := storeClaim{"lost", 1000}, storeClaim{"alive", 2000}
	w, _ := recoveredWorld(t, lost, alive)
	w.mustHalt("one", alive.key()+","+lost.key())
	w.cfg.Adopt = lost.key()
	w.mustHalt("one", alive.key())
	w.mustHalt("two", alive.key()) // a look at the store that halted has adopted nothing

	// A new cell has replaced none, and an older one has not either.
	w = testWorld(t)
	w.clock.Advance(24 * time.Hour)
	w.mustReplace("one")
	w.putClaim(storeClaim{"alive", 1})
	w.mustHalt("one", storeClaim{"alive", 1}.key())
}

// TestClaimsOfTwoLostCells: after a second recovery, a late put of the cell that was lost first lies beside the claim of the one that was lost then. The
// keeper names both, and replaces neither unless both are adopted: one of them may be of a cell that lives.
func TestClaimsOfTwoLostCells(t *testing.T) {
	first, second := storeClaim{"z", 1000}, storeClaim{"a", 2000}
	both := second.key() + "," + first.key()
	w, _ := recoveredWorld(t, first, second)
	w.mustHalt("one", both)
	w.cfg.Adopt = second.key()
	w.mustHalt("one", first.key())
	w.cfg.Adopt = both
	w.mustReplace("one")

	// The own metadata went back as well.
	rule := claimRule{own: storeClaim{"x", 10}}
	own := storeClaim{"x", 11}
	var halted *HaltedError
	if err := compareClaims(rule, []storeClaim{first, own}); !errors.As(err, &halted) || halted.Claims != own.key()+","+first.key() || !strings.Contains(halted.Reason, "backup") {
		t.Errorf("halted by %v", err)
	}
	rule.adopt = own.key() + "," + first.key()
	if err := compareClaims(rule, []storeClaim{first, own}); err != nil {
		t.Error(err)
	}
}

// TestFormerClaimsOfOwnCell: that claims of other cells are former ones does not hide that the cell's own metadata went back.
func TestFormerClaimsOfOwnCell(t *testing.T) {
	rule := claimRule{own: storeClaim{"x", 10}, former: 20}
	if !rule.replaces(storeClaim{"y", 20}) || rule.replaces(storeClaim{"y", 21}) || rule.replaces(storeClaim{"x", 11}) {
		t.Errorf("%+v", rule)
	}
}
