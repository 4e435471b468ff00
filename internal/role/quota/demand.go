package quota

import (
	"cmp"
	"slices"
	"time"
)

const (
	// LeaseTime is how long a lease of a share lasts.
	LeaseTime = 5 * time.Second
	// MaxDemands bounds the quotas of a report.
	MaxDemands = 1000
	// leastDemand is the part of an equal share below which a demand is not reported. All processes that stay below it take a fiftieth
	// of the quota together.
	leastDemand = 1.0 / 50
	// clearTime is the time in which a category wants to pay what it owes, and to serve those that wait.
	clearTime = time.Second
	// shortGrowth is by how much a share grows at least in which something did not pass, if others leave so much.
	shortGrowth = 1.25
)

// amount is what one quota was charged, or would have been.
type amount struct{ bytes, requests float64 }

// addRequest adds a request and its bytes.
func (a *amount) addRequest(bytes int64) {
	a.bytes += float64(bytes)
	a.requests++
}

func (a *amount) subtract(b amount) {
	a.bytes -= b.bytes
	a.requests -= b.requests
}

// shareOf returns an amount as a share of what a quota allows in a second.
func (a amount) shareOf(l Limit) (share float64) {
	if l.Bytes > 0 {
		share = a.bytes / float64(l.Bytes)
	}
	if l.Requests > 0 {
		share = max(share, a.requests/float64(l.Requests))
	}
	return share
}

// usage is what was offered and what passed since the last report that the control plane took.
type usage struct {
	offered, passed amount
	since           time.Duration // when the counts began
	last            time.Duration // when something was offered last
	// short: something did not pass as it came.
	short bool
}

// offerRequest counts a request and its bytes.
func (u *usage) offerRequest(now time.Duration, bytes int64) {
	u.offered.addRequest(bytes)
	u.last = now
}

// lease is a share of the quota that is the process's until it expires.
type lease struct {
	share float64
	until time.Duration
}

// Demand is what a process wants of a quota.
type Demand struct {
	Key
	// Wanted is the share of the quota that would let everything pass that is offered. It may be above 1.
	Wanted float64
	// Passed is what has passed since the last report, in seconds of the whole quota.
	Passed float64
	// told is what the counts were when the demand was made.
	told usage
}

// DemandReport is what a process says of the quotas at once.
type DemandReport struct {
	// Demands are the largest first, at most MaxDemands.
	Demands []Demand
	// Cut says that there are smaller ones.
	Cut bool
	// Pressing says that more than the share of some quota is needed, or leased: the next report is due soon.
	Pressing bool
	at       time.Duration
}

// CollectDemands returns a report. Its counts go on until ApplyLeases says that the control plane has taken it.
func (qs *Registry) CollectDemands() *DemandReport {
	r := &DemandReport{at: qs.now()}
	equal := qs.equalShare()
	qs.eachState(func(now time.Duration, q *State) {
		d := q.demand(now, qs.shareAt(now, q))
		if d.Wanted < leastDemand*equal && now >= q.lease.until {
			if now-q.use.since > calmPause { // too little to tell; a quiet time must not hide what comes after it
				q.use.offered, q.use.passed, q.use.since = amount{}, amount{}, now
			}
			return
		}
		r.Pressing = r.Pressing || q.use.short || now < q.lease.until && q.lease.share > equal
		r.Demands = append(r.Demands, d)
	})
	slices.SortFunc(r.Demands, func(a, b Demand) int {
		return cmp.Or(cmp.Compare(b.Wanted, a.Wanted), cmp.Compare(a.Category, b.Category), cmp.Compare(a.Tenant, b.Tenant))
	})
	if len(r.Demands) > MaxDemands {
		r.Demands, r.Cut = slices.Clip(r.Demands[:MaxDemands]), true
	}
	return r
}

// demand returns what is wanted of the quota: what was offered a second, and what is owed and waits in a second from now. Where something
// did not pass, that is more than the share: those who were refused may all wait for their hints just now.
func (q *State) demand(now time.Duration, share float64) Demand {
	const shortest = 100 * time.Millisecond
	seconds := max(now-q.use.since, shortest).Seconds()
	rate := amount{q.use.offered.bytes / seconds, q.use.offered.requests / seconds}
	soon := clearTime.Seconds()
	owed := amount{(q.bytes.debt(now) + float64(q.line.bytes)) / soon, (q.requests.debt(now) + float64(len(q.line.waiters))) / soon}
	wanted := amount{rate.bytes + owed.bytes, rate.requests + owed.requests}
	want := wanted.shareOf(q.limit)
	if q.use.short {
		want = max(want, share*shortGrowth)
	}
	return Demand{Key: q.limit.Key, Wanted: want, Passed: max(q.use.passed.shareOf(q.limit), 0), told: q.use} // what is taken back may have been told
}

// ApplyLeases takes over the leases that the control plane grants for a report: shares of quotas. Quotas without one go back to the equal
// share.
func (qs *Registry) ApplyLeases(r *DemandReport, shares map[Key]float64) {
	for i := range r.Demands {
		d := &r.Demands[i]
		qs.withKnown(d.Key, func(now time.Duration, q *State) {
			q.use.offered.subtract(d.told.offered)
			q.use.passed.subtract(d.told.passed)
			q.use.since = r.at
			if d.told.short {
				q.use.short = false // else it was noted since, and woke the reporter
			}
			q.lease = lease{}
			if share := shares[d.Key]; share > 0 {
				q.lease = lease{share: share, until: r.at + LeaseTime}
			}
			q.setLimit(now, q.limit, qs.shareAt(now, q))
		})
	}
}

// shareAt returns the share of a quota that the process has: what it leases, and at least the equal one.
func (qs *Registry) shareAt(now time.Duration, q *State) float64 {
	share := qs.equalShare()
	if q != nil && now < q.lease.until {
		share = max(share, q.lease.share)
	}
	return share
}

// equalShare returns the share of a quota that every process has, leases or not.
func (qs *Registry) equalShare() float64 { return 1 / float64(max(qs.sharers(), 1)) }

// noteShort notes that something did not pass a quota, and wakes the reporter the first time since a report.
func (qs *Registry) noteShort(q *State) {
	if !q.use.short {
		q.use.short = true
		qs.Short.WakeUp()
	}
}
