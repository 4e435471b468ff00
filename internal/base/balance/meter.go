package balance

const (
	// urgentLoad is the load from which on an instance advertises it as it is.
	urgentLoad = 900
	// meterShare is the weight of the newest load in the advertised one.
	meterShare = 0.5
)

// LoadMeter smooths the load that an instance advertises with its heartbeats: what fills and empties between two of them would be announced to
// everybody, and move nothing. The zero LoadMeter is ready.
type LoadMeter struct {
	load  float64
	begun bool
}

// Smooth returns what to advertise when the load is as given, at most MaxLoad.
func (m *LoadMeter) Smooth(load uint32) uint32 {
	l := float64(min(load, MaxLoad))
	if !m.begun || l >= urgentLoad {
		m.load, m.begun = l, true
	} else {
		m.load += (l - m.load) * meterShare
	}
	return uint32(m.load + 0.5)
}

// Differs reports whether a load differs from an announced one by more than noise, so that it must not wait for the next list that is sent
// anyway.
func Differs(announced, load uint32) bool {
	low, high := min(announced, load), max(announced, load)
	return high-low >= max(noiseLoad, high/4) || low < urgentLoad && high >= urgentLoad
}
