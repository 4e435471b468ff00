package writeproxy

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestBreakerModel: a batcher is left alone only after failures or silence, comes back with any answer, and is probed by one at a
// time, less and less often.
func TestBreakerModel(t *testing.T) {
	const stall = 3 * time.Second
	rapid.Check(t, func(t *rapid.T) {
		v := &batcherHealth{stall: stall}
		now := time.Duration(0)
		outstanding, gone, probes := 0, 0, 0
		silentSince := time.Duration(0)
		for range rapid.IntRange(1, 80).Draw(t, "steps") {
			now += time.Duration(rapid.Int64Range(0, int64(2*time.Second)).Draw(t, "pause"))
			wasOpen := v.open
			switch what := rapid.SampledFrom([]string{"begin", "answer", "gone", "leaving", "silent", "unknown", "look", "probe", "probed"}).Draw(t, "what"); what {
			case "begin":
				if outstanding == 0 {
					silentSince = now
				}
				outstanding++
				v.beginRequest(now)
			case "look":
				v.tripStalled(now)
				if v.open && !wasOpen && (outstanding == 0 || now-silentSince < stall) {
					t.Fatalf("left alone with %d requests, silent for %v", outstanding, now-silentSince)
				}
				if !v.open && outstanding > 0 && now-silentSince >= stall {
					t.Fatalf("not left alone though silent for %v", now-silentSince)
				}
			case "probe":
				if v.takeProbe(now) {
					if !v.open || now < v.until {
						t.Fatal("probed too early")
					}
					probes++
				}
				if probes > 1 {
					t.Fatal("two probes at a time")
				}
			case "probed":
				if probes == 0 {
					continue
				}
				probes--
				ok := rapid.Bool().Draw(t, "ok")
				v.endProbe(now, ok)
				if ok {
					gone, silentSince = 0, now
				} else if v.open && (v.until < now+minOpen || v.until > now+maxOpen) {
					t.Fatalf("the next probe is %v later", v.until-now)
				}
				if ok == v.open && wasOpen {
					t.Fatalf("open is %v after a probe that ended with %v", v.open, ok)
				}
			default:
				if outstanding == 0 {
					continue
				}
				outstanding--
				switch what {
				case "answer":
					v.endRequest(now, endAnswered)
					gone, silentSince = 0, now
					if v.open {
						t.Fatal("left alone after an answer")
					}
				case "gone":
					gone++
					v.endRequest(now, endGone)
					if v.open != (wasOpen || gone >= maxGone) {
						t.Fatalf("open is %v after %d failures", v.open, gone)
					}
				case "leaving":
					v.endRequest(now, endLeaving)
					if !v.open {
						t.Fatal("one that says that it goes is used")
					}
				case "silent":
					v.endRequest(now, endSilent)
					if v.open != (wasOpen || now-silentSince >= stall) {
						t.Fatalf("open is %v after %v of silence", v.open, now-silentSince)
					}
				case "unknown":
					v.endRequest(now, endUnknown)
					if v.open != wasOpen {
						t.Fatal("what tells nothing changed something")
					}
				}
			}
			if v.outstanding != outstanding {
				t.Fatalf("%d outstanding, want %d", v.outstanding, outstanding)
			}
			if w := v.weight(); (w == 0) != v.open || w > 1 || !v.open && w < levelWeight(maxLevel) {
				t.Fatalf("weight %v, open %v", w, v.open)
			}
		}
	})
}

// settled lets a condition last until the weight has followed it.
func settled(v *batcherHealth, now time.Duration, load uint32, latency time.Duration, median float64) time.Duration {
	for range 200 {
		now += 100 * time.Millisecond
		v.beginRequest(now)
		v.endRequest(now, endAnswered)
		v.noteOwnLoad(now, load)
		if latency > 0 {
			v.noteLatency(now, latency)
		}
		v.updateLevel(now, median)
	}
	return now
}

func TestWeights(t *testing.T) {
	for _, tc := range []struct {
		name      string
		load      uint32
		latency   time.Duration
		median    float64
		low, high float64
	}{
		{"idle", 0, 0, 0, 1, 1},
		{"half full", 500, 0, 0, 1, 1},
		{"nearly full", 900, 0, 0, 0.125, 0.3},
		{"full", 1000, 0, 0, 0.125, 0.125},
		{"as fast as others", 0, 20 * time.Millisecond, 0.02, 1, 1},
		{"twice as slow", 0, 40 * time.Millisecond, 0.02, 1, 1},
		{"eight times as slow", 0, 160 * time.Millisecond, 0.02, 0.25, 0.4},
		{"far slower, and full", 1000, 10 * time.Second, 0.02, 0.125, 0.125},
		{"no difference that matters", 0, 9 * time.Millisecond, 0.001, 1, 1},
	} {
		v := &batcherHealth{stall: time.Second}
		now := settled(v, 0, tc.load, tc.latency, tc.median)
		if w := v.weight(); w < tc.low || w > tc.high {
			t.Errorf("%s: weight %v, want %v to %v", tc.name, w, tc.low, tc.high)
		}
		// When it is well again it gets its share back.
		settled(v, now, 0, time.Duration(tc.median*1e9), tc.median)
		if v.weight() != 1 {
			t.Errorf("%s: weight %v afterwards", tc.name, v.weight())
		}
	}
	// One that is slow and is not spoken to is not thought slow forever.
	v := &batcherHealth{stall: time.Second}
	now := settled(v, 0, 0, time.Second, 0.02)
	before := v.weight()
	v.updateLevel(now+2*time.Minute, 0.02)
	if before == 1 || v.weight() != 1 {
		t.Errorf("weight %v, and %v after two minutes of silence", before, v.weight())
	}
}

// TestHysteresis: a condition that moves a little, or to and fro between two levels, does not move the weight.
func TestHysteresis(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := &batcherHealth{stall: time.Second}
		base := rapid.Uint32Range(0, 960).Draw(t, "load")
		now := settled(v, 0, base, 0, 0)
		changes := 0
		for range 100 {
			now += time.Duration(rapid.Int64Range(0, int64(time.Second)).Draw(t, "pause"))
			v.noteOwnLoad(now, min(base+rapid.Uint32Range(0, 20).Draw(t, "wobble"), 1000))
			if v.updateLevel(now, 0) {
				changes++
			}
		}
		if changes > 1 { // the first may be that of a condition at the edge
			t.Fatalf("%d changes of weight for loads of %d to %d", changes, base, base+20)
		}
	})
}

// TestLoadSources: what a batcher says itself counts before the membership, as long as it is fresh; more is believed at once.
func TestLoadSources(t *testing.T) {
	v := &batcherHealth{stall: time.Second}
	v.noteAdvertised(0, 900)
	if v.load != 900 {
		t.Errorf("load %v from the membership", v.load)
	}
	v.noteOwnLoad(10*time.Second, 100)
	v.noteAdvertised(11*time.Second, 900)
	if v.load > 200 {
		t.Errorf("load %v, it said 100 a moment ago", v.load)
	}
	v.noteOwnLoad(12*time.Second, 1000)
	if v.load != 1000 || !v.isPressed(12*time.Second) {
		t.Errorf("load %v when it says 1000", v.load)
	}
	v.noteAdvertised(18*time.Second, 300)
	v.noteAdvertised(30*time.Second, 300)
	if v.load < 300 || v.load > 310 {
		t.Errorf("load %v long after its own word", v.load)
	}
}
