// Package quotashare divides the quotas of categories and tenants among the processes that enforce them, by what each wants: [Divider] is a state
// machine without I/O, which the control plane drives.
//
// A quota is divided by water-filling: who wants less than the level gets what it wants, the others get the level, so that nobody gets less
// than an equal share while another gets more (max-min fairness; Bertsekas and Gallager, Data Networks, 6.5.2). What nobody wants is added in
// proportion to what each wants, so that growing traffic is not held up before the next division. Nobody needs a lease for the equal share:
// it is what a process enforces without the control plane.
//
// Shares are of what is wanted a moment ago. While traffic moves from one process to another, too little passes, or too much: both are
// counted, and made up for by a level that is up to a fifth higher or lower.
package quotashare

import (
	"cmp"
	"slices"
	"time"

	"scribe/internal/role/quota"
)

const (
	// divideEvery is the least time between two divisions of a quota, however many reports name it.
	divideEvery = 100 * time.Millisecond
	// sweepEvery is the time between two searches for processes that report no more.
	sweepEvery = time.Second
	// maxClaims bounds the quotas of all reports. What is beyond it has the equal share.
	maxClaims = 1_000_000
	// maxCorrection bounds the correction of the level, as a part of the quota.
	maxCorrection = 0.2
	// maxSurplus and maxDeficit bound what is made up for, in seconds of the quota.
	maxSurplus = 2.0
	maxDeficit = 1.0
	// correctWithin is the time in which a surplus or a deficit is made up for, in seconds.
	correctWithin = 1.0
)

// Demand is what a process wants of a quota, and what it has let pass since its last report: see scribe.v1.QuotaDemand.
type Demand struct {
	quota.Key
	Wanted float64
	Passed float64
}

// Report is all that a process wants.
type Report struct {
	Member string
	// Role tells apart the quotas that a process enforces in different roles.
	Role int32
	// Demands name a quota at most once, and are the largest first.
	Demands []Demand
	// Cut says that there are more, each smaller than those.
	Cut bool
}

// Sharers are the processes that enforce the quotas of a role.
type Sharers struct {
	// All is their number, at least 1.
	All int
	// Mute is the number of those that never report. They are taken to use an equal share each.
	Mute int
}

// Divider divides quotas. It is not safe for concurrent use. Times are relative to any fixed instant.
type Divider struct {
	lease     time.Duration
	reporters map[reporterKey]*reporter
	quotas    map[quotaKey]*division
	claims    int
	swept     time.Duration
	divisions uint64
}

type reporterKey struct {
	member string
	role   int32
}

type quotaKey struct {
	quota.Key
	role int32
}

// reporter is a process that reports.
type reporter struct {
	at     time.Duration // of the last report
	number uint64        // of the last report, from 1
	quotas []quota.Key   // to which it has claims
	// least is the least demand of a report that was cut, 0 if it was not.
	least float64
}

// division is the state of one quota.
type division struct {
	claims map[string]*claim // by member
	at     time.Duration     // of the last division
	passed float64           // since then
	// balance is what should have passed and did not, in seconds of the quota; below 0 if too much passed.
	balance float64
}

// claim is what one process wants, and what it has.
type claim struct {
	wanted, share float64
	report        uint64 // the number of the process's last report that named it
}

// New returns a divider whose leases last for a time.
func New(lease time.Duration) *Divider {
	d := &Divider{lease: lease}
	d.Restart()
	return d
}

// Restart forgets everything: the processes have equal shares, once their leases have ended, until they report.
func (d *Divider) Restart() {
	d.reporters, d.quotas, d.claims = map[reporterKey]*reporter{}, map[quotaKey]*division{}, 0
}

// CountDivided returns the number of quotas that are divided, and of divisions since the start.
func (d *Divider) CountDivided() (quotas int, divisions uint64) {
	return len(d.quotas), d.divisions
}

// TakeReport takes a report over, divides the quotas that are due, and returns the shares above the equal one that the process leases.
func (d *Divider) TakeReport(now time.Duration, r Report, s Sharers) []Demand {
	d.sweepReporters(now)
	key := reporterKey{r.Member, r.Role}
	from := d.reporters[key]
	if from == nil {
		if len(r.Demands) == 0 {
			return nil
		}
		from = &reporter{}
		d.reporters[key] = from
	}
	from.at, from.least = now, 0
	from.number++
	if n := len(r.Demands); r.Cut && n > 0 {
		from.least = r.Demands[n-1].Wanted
	}
	equal := 1 / float64(max(s.All, 1))
	before := from.quotas
	from.quotas = make([]quota.Key, 0, len(r.Demands))
	var leases []Demand
	for _, want := range r.Demands {
		c := d.claimShare(r, from.number, want)
		if c == nil {
			continue
		}
		from.quotas = append(from.quotas, want.Key)
		d.divideDue(now, quotaKey{want.Key, r.Role}, s)
		if c.share > equal {
			leases = append(leases, Demand{Key: want.Key, Wanted: c.share})
		}
	}
	for _, key := range before {
		d.releaseClaim(quotaKey{key, r.Role}, r.Member, from.number)
	}
	if len(from.quotas) == 0 {
		delete(d.reporters, key)
	}
	return leases
}

// claimShare notes what a process wants of a quota. It returns nil if there are too many claims.
func (d *Divider) claimShare(r Report, number uint64, want Demand) *claim {
	key := quotaKey{want.Key, r.Role}
	div := d.quotas[key]
	if div == nil {
		div = &division{claims: map[string]*claim{}}
	}
	c := div.claims[r.Member]
	if c == nil {
		if d.claims >= maxClaims {
			return nil
		}
		c = &claim{}
		div.claims[r.Member] = c
		d.quotas[key] = div
		d.claims++
	}
	c.wanted, c.report = want.Wanted, number
	div.passed += want.Passed
	return c
}

// releaseClaim removes the claim of a process that its last report, with a number, did not name, and the quota with the last one.
func (d *Divider) releaseClaim(key quotaKey, member string, number uint64) {
	div := d.quotas[key]
	if div == nil {
		return
	}
	if c := div.claims[member]; c == nil || c.report == number {
		return
	}
	delete(div.claims, member)
	d.claims--
	if len(div.claims) == 0 {
		delete(d.quotas, key)
	}
}

// sweepReporters forgets processes whose leases have ended since they report no more.
func (d *Divider) sweepReporters(now time.Duration) {
	if now-d.swept < sweepEvery {
		return
	}
	d.swept = now
	for key, r := range d.reporters {
		if now-r.at <= d.lease {
			continue
		}
		for _, q := range r.quotas {
			d.releaseClaim(quotaKey{q, key.role}, key.member, 0)
		}
		delete(d.reporters, key)
	}
}

// divideDue divides a quota, unless it was divided a moment ago.
func (d *Divider) divideDue(now time.Duration, key quotaKey, s Sharers) {
	div := d.quotas[key]
	if div.at != 0 && now-div.at < divideEvery {
		return
	}
	equal := 1 / float64(max(s.All, 1))
	reserved := equal * float64(s.Mute)
	for from, r := range d.reporters {
		if r.least > 0 && from.role == key.role && div.claims[from.member] == nil {
			reserved += min(equal, r.least)
		}
	}
	d.divisions++
	div.divide(now, equal, reserved)
}

// divide gives every claim its share of the quota, without what is reserved for processes that have no claim.
func (div *division) divide(now time.Duration, equal, reserved float64) {
	order := make([]*claim, 0, len(div.claims))
	total := reserved
	for _, c := range div.claims {
		order = append(order, c)
		total += c.wanted
	}
	div.settleBalance(now, total, reserved)
	target := 1 + min(max(div.balance/correctWithin, -maxCorrection), maxCorrection)
	pool := max(target-reserved, 0)
	slices.SortFunc(order, func(a, b *claim) int { return cmp.Compare(a.wanted, b.wanted) })
	left, wanted := pool, 0.0
	for i, c := range order {
		c.share = min(c.wanted, left/float64(len(order)-i))
		left -= c.share
		wanted += c.share
	}
	for _, c := range order {
		if left > 0 && wanted > 0 {
			c.share += left * c.share / wanted
		}
		c.share = max(c.share, equal)
	}
}

// settleBalance counts what passed since the last division against the quota, without what is reserved for others. What did not pass is made up for only while more is wanted
// than there is: else nobody missed it.
func (div *division) settleBalance(now time.Duration, wanted, reserved float64) {
	if div.at != 0 {
		div.balance += (now-div.at).Seconds()*max(1-reserved, 0) - div.passed
	}
	div.balance = min(max(div.balance, -maxSurplus), maxDeficit)
	if wanted < 1 {
		div.balance = min(div.balance, 0)
	}
	div.at, div.passed = now, 0
}
