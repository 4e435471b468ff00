package controlplane

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	scribev1 "scribe/proto/scribe/v1"
)

func hold(t *testing.T, c *ControlPlane, holder string, ttl time.Duration, pins ...*scribev1.Pin) {
	t.Helper()
	if _, err := c.HoldPins(t.Context(), &scribev1.HoldPinsRequest{Holder: holder, Pins: pins, Ttl: durationpb.New(ttl)}); err != nil {
		t.Fatal(err)
	}
}

func wantPins(t *testing.T, c *ControlPlane, age time.Duration, want ...string) {
	t.Helper()
	res, err := c.ListPins(t.Context(), &scribev1.ListPinsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, p := range res.GetPins() {
		got = append(got, fmt.Sprintf("%d@%d", p.GetCategory(), p.GetFrom()))
	}
	if strings.Join(got, " ") != strings.Join(want, " ") || res.GetAge().AsDuration() != age {
		t.Fatalf("pins %v of %v, want %v of %v", got, res.GetAge().AsDuration(), want, age)
	}
}

func TestPins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t, newStore(t), nil)
		defer stop(t, c)
		pin := func(category uint32, from int64) *scribev1.Pin { return &scribev1.Pin{Category: category, From: from} }
		wantPins(t, c, 0)
		hold(t, c, "a", 10*time.Second, pin(2, 50), pin(1, 70))
		hold(t, c, "b", 0, pin(2, 40))
		wantPins(t, c, 0, "1@70", "2@40")
		<-time.After(9 * time.Second)
		hold(t, c, "a", 10*time.Second, pin(1, 80)) // replaces all of its pins
		wantPins(t, c, 9*time.Second, "1@80", "2@40")
		<-time.After(10 * time.Second) // a is silent
		wantPins(t, c, 19*time.Second, "2@40")
		hold(t, c, "b", 0)
		wantPins(t, c, 19*time.Second)
		if n := c.pins.countHolders(); n != 0 || c.pins.mu.pins != 0 {
			t.Errorf("%d holders with %d pins are left", n, c.pins.mu.pins)
		}
	})
}

func TestPinsAreBounded(t *testing.T) {
	c := start(t, newStore(t), nil)
	_, err := c.HoldPins(t.Context(), &scribev1.HoldPinsRequest{
		Pins: []*scribev1.Pin{{Category: 1}, {Category: 1}}, Ttl: durationpb.New(time.Hour), Holder: strings.Repeat("x", 256),
	})
	wantReason(t, err, scribev1.Reason_REASON_INVALID, "holder: ", "pins: ", "ttl: ")
	many := make([]*scribev1.Pin, maxPins+1)
	for i := range many {
		many[i] = &scribev1.Pin{Category: uint32(i + 1)}
	}
	_, err = c.HoldPins(t.Context(), &scribev1.HoldPinsRequest{Holder: "a", Pins: many})
	wantReason(t, err, scribev1.Reason_REASON_INVALID, "pins: ")
	for i := range maxPinsInAll / maxPins {
		hold(t, c, fmt.Sprint(i), 0, many[:maxPins]...)
	}
	_, err = c.HoldPins(t.Context(), &scribev1.HoldPinsRequest{Holder: "late", Pins: many[:1]})
	wantReason(t, err, scribev1.Reason_REASON_OVERLOADED)
	hold(t, c, "0", 0, many[:maxPins-1]...)
	hold(t, c, "late", 0, many[0])
}
