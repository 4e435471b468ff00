package app

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"

	"scribe/internal/cell/access"
	"scribe/internal/cell/enforce"
	"scribe/internal/cell/oidc"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/proto/scribe/v1/scribev1connect"
)

// startAccess follows who may do what, and lets nobody in before that is known. An agent alone does not: it is a client of its cell,
// and lends its own rights to the programs of its host.
func (a *App) startAccess(ctx context.Context) error {
	source := a.parts.access
	if source == nil {
		source = rpc.NewAccessClient(a.transport, a.cfg.Control)
		a.parts.access = source
	}
	cfg := access.DefaultViewConfig()
	cfg.File = filepath.Join(a.cfg.Data, "access")
	cfg.FS, cfg.Now, cfg.Random = a.opts.Host.FS, a.opts.Host.Now, a.opts.Host.Random.Named("access")
	view, err := access.NewView(cfg, access.ViewDeps{Source: source, Logger: a.log, Registerer: a.registry})
	if err != nil {
		return err
	}
	a.runView(ctx, "access", view)
	a.parts.rights = view
	issuer, err := a.startIssuer(ctx)
	if err != nil {
		return err
	}
	a.enforcer, err = enforce.New(enforce.Deps{
		Rights: view, Issuer: issuer, Trail: a.trail, Random: a.opts.Host.Random.Named("own token"), Now: a.opts.Host.Now, Logger: a.log, Registerer: a.registry,
	})
	if err != nil {
		return err
	}
	a.transport.SetTokens(a.tokenFor)
	select {
	case <-view.Ready():
	case <-ctx.Done():
		return fmt.Errorf("who may do what is not known, from the control plane at %s: %w", a.cfg.Control, context.Cause(ctx))
	}
	a.provideServices(rpc.Services{Access: a.parts.access})
	a.entrance.Store(new(a.enforcer.Protect(a.bounded)))
	return nil
}

// startIssuer follows the keys of the issuer whose tokens prove who calls; nil if there is none. It waits for the first answer, also with keys of before, which may have been
// withdrawn since. Without an answer the process begins with those, or has callers with such tokens try again.
func (a *App) startIssuer(ctx context.Context) (enforce.Issuer, error) {
	if !a.cfg.OIDC.IsSet() {
		return nil, nil //nolint:nilnil // there is none
	}
	v, err := oidc.New(a.cfg.OIDC, oidc.Deps{
		File: filepath.Join(a.cfg.Data, "oidc-keys"), FS: a.opts.Host.FS, Now: a.opts.Host.Now, Logger: a.log, Registerer: a.registry,
	})
	if err != nil {
		return nil, err
	}
	a.runView(ctx, "issuer", v)
	a.watchCondition("issuer of tokens", scribev1.Severity_SEVERITY_DEGRADED, v.Err)
	select {
	case <-v.Tried():
		return v, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// ServeHTTP implements http.Handler for everything that is served at the process's addresses. Until it is known who may do what, a
// process that has to know serves nothing but its health, and what nodes ask of each other to begin.
func (a *App) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	entrance := a.entrance.Load()
	switch path := r.URL.Path; {
	case entrance != nil:
		(*entrance).ServeHTTP(w, r)
	case !a.cfg.needsControl(), path == "/livez", path == "/readyz", strings.HasPrefix(path, "/"+scribev1connect.NodeServiceName+"/"):
		a.bounded.ServeHTTP(w, r)
	default:
		serveStarting(w)
	}
}

// protectCategory lets a handler serve only who may write to the category in the path.
func (a *App) protectCategory(h http.Handler) http.Handler {
	if a.enforcer == nil {
		return h
	}
	return a.enforcer.ProtectCategory(h)
}

// enforced returns services as they are served to others.
func (a *App) enforced(s rpc.Services) rpc.Services {
	if a.enforcer == nil {
		return s
	}
	return a.enforcer.Services(s)
}

// controlCategories finds the owners of categories in a process that has no copy of the categories.
type controlCategories struct{ rpc.ControlService }

// Lookup implements enforce.Categories.
func (controlCategories) Lookup(string) (*scribev1.Category, bool) { return nil, false }

// Resolve implements enforce.Categories.
func (c controlCategories) Resolve(ctx context.Context, name string) (*scribev1.Category, error) {
	res, err := c.GetCategory(ctx, &scribev1.GetCategoryRequest{Name: name})
	return res.GetCategory(), err
}

// OwnToken is what proves to the process that a call is its own, for a command whose cell is in its process. It opens nothing elsewhere; "" where nobody is asked.
func (a *App) OwnToken() string {
	if a.enforcer == nil {
		return ""
	}
	return a.enforcer.OwnToken()
}

// tokenFor returns what the process proves itself with where it calls itself. Other processes get nothing: they ask for certificates.
func (a *App) tokenFor(to *url.URL) string {
	for _, own := range []string{a.url, a.cfg.Advertise} {
		if u, err := url.Parse(own); err == nil && own != "" && u.Host == to.Host {
			return a.enforcer.OwnToken()
		}
	}
	return ""
}
