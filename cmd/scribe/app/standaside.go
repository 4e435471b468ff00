package app

import (
	"context"
	"slices"
	"time"

	scribev1 "scribe/proto/scribe/v1"
)

// leadStep hands over what a part of the process leads, if it does.
type leadStep struct {
	name string
	// heirs is the role of those that can take over.
	heirs scribev1.Role
	fn    func(context.Context) error
}

func (a *App) onStandAside(name string, heirs scribev1.Role, fn func(context.Context) error) {
	a.leads = append(a.leads, leadStep{name, heirs, fn})
}

// standAsideTimeout bounds what a process that stops does before it drains.
const standAsideTimeout = 3 * time.Second

// standAside lets the other members of the cell take over before this process drains: its clients, and what it leads, so that nobody waits
// for a drain. What drains then needs the new leaders.
func (a *App) standAside(ctx context.Context) {
	if a.parts.gateway == nil || !a.cfg.needsControl() {
		return // an agent: its clients wait for it
	}
	ctx, cancel := context.WithTimeout(ctx, standAsideTimeout)
	defer cancel()
	others := a.parts.gateway.announceStop(ctx)
	for _, l := range slices.Backward(a.leads) {
		if !hasRole(others, l.heirs) {
			continue
		}
		begin := time.Now()
		if err := l.fn(ctx); err != nil {
			a.log.WarnContext(ctx, "failed to hand over before stopping: another takes over after a while", "part", l.name, "error", err)
		}
		a.logStep("stand aside", l.name, time.Since(begin))
	}
}
