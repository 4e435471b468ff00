package controlplane

import "time"

// Leads reports whether this control plane serves members and pins itself: it holds the leadership, or shares its store with none.
func (c *ControlPlane) Leads() bool {
	held, _, _ := c.leadership.heldNow(time.Now())
	return !c.cfg.Shared || held != nil
}
