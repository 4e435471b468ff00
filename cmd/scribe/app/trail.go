package app

import (
	"context"
	"slices"

	"scribe/internal/base/config"
	"scribe/internal/cell/audit"
	"scribe/internal/transport/discovery"
	scribev1 "scribe/proto/scribe/v1"
)

// audits reports whether the process keeps a trail of what its callers do. An agent alone does not: its cell does.
func (c *Config) audits() bool { return c.Audit && c.enforcesAccess() && c.needsControl() }

// checkAudit refuses what would be in no trail: whoever asks for it relies on it.
func (c *Config) checkAudit(v *config.Violations) {
	switch {
	case c.AuditDataAccess == 0 || !c.needsControl():
	case !c.Audit:
		v.Add("AuditDataAccess", "there is no trail to note it in with audit: false (--audit=false)")
	case !c.Secure && !c.enforcesAccess():
		v.Add("AuditDataAccess", "nobody is asked who calls: want --secure, or certificates (scribe cert) with --tls-client-ca")
	}
}

// startTrail stores the trail, which has gathered entries since the process began, through this process's write proxy or another one.
func (a *App) startTrail(context.Context) error {
	deps := audit.Deps{Write: a.parts.write, Control: a.parts.control, Process: a.id, Ready: a.knowOwnCategories}
	if deps.Write == nil {
		deps.Write = discovery.New(a.transport, a.controlURL(), a.opts.Host.Random.Named("audit writes")).Write()
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		a.trail.Run(ctx, deps)
	}()
	a.onStop("audit trail", func(context.Context) error {
		cancel()
		<-ended
		return nil
	})
	return nil
}

// knowOwnCategories reports whether every member of the cell knows categories of the cell itself.
func (a *App) knowOwnCategories(ctx context.Context) (bool, error) {
	res, err := a.parts.control.ListMembers(ctx, &scribev1.ListMembersRequest{})
	if err != nil {
		return false, err
	}
	return !slices.ContainsFunc(res.GetMembers(), func(m *scribev1.Member) bool { return !m.GetOwnCategories() }), nil
}
