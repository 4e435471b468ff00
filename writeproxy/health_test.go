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
			if w := v.weight(); (w == 0) != v.open || w > 1 || !v.open && w < 1.0/32 {
				t.Fatalf("weight %v, open %v", w, v.open)
			}
		}
	})
}
