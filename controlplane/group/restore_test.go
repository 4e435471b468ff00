package group

import (
	"testing"
	"time"

	"scribe/internal/format/bucket"
)

// TestRestoreValue: a group of an older copy keeps its positions; nobody who was a member then or later is taken for a member.
func TestRestoreValue(t *testing.T) {
	g := New("readers", "web", 7, bucket.Scheme{Sharing: bucket.Pointers, Buckets: 4}, 4)
	g.Positions, g.CreatedAt = 3, 5
	g.Join(Member{Name: "m", TTL: minTTL, RevokeTimeout: time.Minute})
	value, err := encodeGroup(g)
	if err != nil {
		t.Fatal(err)
	}
	restored, err := decodeGroup("readers", RestoreValue(groupKey("readers"), value))
	if err != nil {
		t.Fatal(err)
	}
	if len(restored.Members) != 0 || restored.LastEpoch < g.LastEpoch+restoreMargin || restored.Generation < g.Generation+restoreMargin || restored.Positions != 3 ||
		restored.Category != "web" || restored.CategoryID != 7 || restored.Scheme != g.Scheme || restored.CreatedAt != 5 {
		t.Errorf("%+v, was %+v", restored, g)
	}
	for key, value := range map[string]string{"group/damaged": "x", "group-position/readers/0000000000000003/00": "y", "slot/00001": "z"} {
		if got := RestoreValue(key, []byte(value)); string(got) != value {
			t.Errorf("%s became %q", key, got)
		}
	}
}
