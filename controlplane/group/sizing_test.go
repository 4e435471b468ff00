package group

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"scribe/internal/format/record"
	scribev1 "scribe/proto/scribe/v1"
)

func TestRecommend(t *testing.T) {
	const mb = 1_000_000
	for _, tt := range []struct {
		name string
		need groupSizing
		want int
		says string
	}{
		{"nothing is known", groupSizing{members: 3, traffic: mb}, 0, "unknown yet"},
		{"idle", groupSizing{members: 3, capacity: 10 * mb, most: 256}, 1, "0B/s are written"},
		{"traffic alone", groupSizing{members: 1, capacity: 10 * mb, traffic: 30 * mb, most: 256}, 5, "28.6MiB/s are written"},
		{"backlog", groupSizing{members: 1, capacity: 10 * mb, traffic: 7 * mb, lag: 600 * 14 * mb, most: 256}, 3, "through with what waits in 10m"},
		{"few buckets", groupSizing{members: 1, capacity: mb, traffic: 30 * mb, most: 4}, 4, "no more than 4"},
		{"absurd", groupSizing{members: 1, capacity: 1, traffic: 1 << 50, lag: 1 << 60, most: 256}, 256, "no more than 256"},
	} {
		n, why := tt.need.recommendMembers()
		if n != tt.want || !strings.Contains(why, tt.says) {
			t.Errorf("%s: %d, want %d: %s", tt.name, n, tt.want, why)
		}
	}
}

// What members say of themselves and what is in the logs makes lag, traffic and a recommendation.
func TestDescribe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		shard := w.tail(1, 4001)
		w.seeks[shard] = 1001 // 3000 pointers in 5 minutes: 10 a second
		c := w.coordinator(t, "one")
		a := c.mustJoin(t, joinRequest("a"))
		begun := time.Now()
		beat := func() {
			t.Helper()
			if _, err := c.HeartbeatGroup(t.Context(), &scribev1.HeartbeatGroupRequest{
				Group: "readers", Member: "a", Epoch: a.epoch, Generation: a.generation, Status: &scribev1.GroupMemberStatus{
					Watermark: begun.UnixMicro(), BytesPerSecond: 10_000_000, PointersPerKilosecond: 5000, MessagesPerSecond: 10, BusyPermille: 1000,
				},
			}); err != nil {
				t.Fatal(err)
			}
		}
		for range 10 {
			<-time.After(time.Second)
			beat()
		}
		if err := a.commit(t.Context(), shard, 3001); err != nil {
			t.Fatal(err)
		}
		d, err := c.DescribeGroup(t.Context(), &scribev1.DescribeGroupRequest{Group: "readers"})
		if err != nil {
			t.Fatal(err)
		}
		// 2 MB a pointer: 20 MB/s are written, 2 GB wait; one member takes 10 MB/s.
		if l := d.GetLag(); l.GetPointers() != 1000 || l.GetBytes() != 2_000_000_000 || l.GetTime().AsDuration() != 10*time.Second {
			t.Errorf("lag %v", l)
		}
		if d.GetTrafficPointersPerKilosecond() != 10_000 || d.GetTrafficBytesPerSecond() != 20_000_000 {
			t.Errorf("traffic %d, %d", d.GetTrafficPointersPerKilosecond(), d.GetTrafficBytesPerSecond())
		}
		if d.GetRecommendedMembers() != 4 || d.GetRecommendation() == "" {
			t.Errorf("%d members: %s", d.GetRecommendedMembers(), d.GetRecommendation())
		}
		if len(d.GetBuckets()) != 16 || len(d.GetShards()) != 1 || d.GetShards()[0].GetLag().GetPointers() != 1000 || len(d.GetMembers()) != 1 {
			t.Errorf("%v", d)
		}
		if m := d.GetMembers()[0]; m.GetBuckets() != 16 || m.GetLag().GetPointers() != 1000 || m.GetStatus().GetBusyPermille() != 1000 {
			t.Errorf("%v", m)
		}
		// What was trimmed does not wait.
		w.mu.Lock()
		w.logs[shard].FirstLSN = record.LSN(3501)
		w.mu.Unlock()
		d, err = c.DescribeGroup(t.Context(), &scribev1.DescribeGroupRequest{Group: "readers", Brief: true})
		if err != nil || d.GetLag().GetPointers() != 500 {
			t.Errorf("%v, %v", d.GetLag(), err)
		}
		// Without the engine everything else is told.
		w.mu.Lock()
		w.down = errDown
		w.mu.Unlock()
		d, err = c.DescribeGroup(t.Context(), &scribev1.DescribeGroupRequest{Group: "readers"})
		if err != nil || d.GetIncomplete() == "" || len(d.GetMembers()) != 1 {
			t.Errorf("%v, %v", d, err)
		}
	})
}
