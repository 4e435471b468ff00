package admission

import (
	"runtime"
	"time"
)

// LoadMeter measures how busy a host is. It is not safe for concurrent use.
type LoadMeter struct {
	cpu     func() time.Duration
	network float64

	last     time.Time
	lastCPU  time.Duration
	lastSent uint64
}

// NewMeter returns a meter. It compares the CPU time from cpu, that of the process if nil, with the processors that the process
// may use, and the sent bytes with network, in bytes a second; 0 means that the network is never the bottleneck.
func NewMeter(cpu func() time.Duration, network float64) *LoadMeter {
	if cpu == nil {
		cpu = processTime
	}
	return &LoadMeter{cpu: cpu, network: network}
}

// Sample returns the utilisation since the previous sample, and the time since then. ok is false for the first sample, and if
// less than least has passed; then no sample is taken. sent is the total of bytes sent.
func (m *LoadMeter) Sample(now time.Time, sent uint64, least time.Duration) (utilisation float64, dt time.Duration, ok bool) {
	dt = now.Sub(m.last)
	begun := !m.last.IsZero()
	if begun && dt < least {
		return 0, 0, false
	}
	used := m.cpu()
	if begun {
		utilisation = (used - m.lastCPU).Seconds() / (dt.Seconds() * float64(runtime.GOMAXPROCS(0)))
		if m.network > 0 {
			utilisation = max(utilisation, float64(sent-m.lastSent)/dt.Seconds()/m.network)
		}
	}
	m.last, m.lastCPU, m.lastSent = now, used, sent
	return min(max(utilisation, 0), 1), dt, begun
}
