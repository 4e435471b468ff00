package enforce

import (
	"context"
	"net/http"

	"connectrpc.com/connect"

	"scribe/internal/cell/access"
	"scribe/internal/transport/principal"
	"scribe/internal/transport/rpc"
)

// Protect lets requests to next only from those to whom the call can be open. Afterwards the request's context has the principal: that
// of the token, if there is one, else the one that the connection has proved.
func (e *Enforcer) Protect(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, err := e.WithCaller(r.Context(), r.Header.Get("Authorization"))
		if requirementOf(r.URL.Path).everybody {
			err = nil
		}
		if err == nil {
			ctx, err = e.withImposed(ctx, w, r.Header)
		}
		if err == nil {
			err = e.admitCall(ctx, r.URL.Path)
		}
		if err != nil {
			refuseRequest(w, r, err)
			return
		}
		if requirementOf(r.URL.Path).lasting {
			watched, release := e.watchCaller(ctx, func(ctx context.Context) error { return e.admitCall(ctx, r.URL.Path) })
			defer release()
			ctx = watched
		}
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

// WithCaller returns a context with the principal of an Authorization header, which may be empty. In an open cell a token that is not
// known is ignored, and so is every token of the issuer: whom nobody has granted anything stays whom the connection proves.
func (e *Enforcer) WithCaller(ctx context.Context, header string) (context.Context, error) {
	token, ok := rpc.AuthorizationToken(header)
	if !ok {
		return ctx, nil
	}
	if !e.Closed() && access.IsForeign(token) {
		return ctx, nil
	}
	p, err := e.Authenticate(ctx, token)
	if err != nil && !e.Closed() {
		return ctx, nil
	}
	if err != nil {
		return ctx, err
	}
	return principal.NewContext(ctx, p), nil
}

// refuseRequest answers a request that is not let in.
func refuseRequest(w http.ResponseWriter, r *http.Request, err error) {
	if connect.CodeOf(err) == connect.CodeUnauthenticated {
		w.Header().Set("WWW-Authenticate", `Bearer realm="scribe"`)
	}
	rpc.RefuseRequest(w, r, err)
}

// ProtectCategory lets requests to next only from those who may write to the category in the path. It is for patterns with
// {category}, and decides before the body is read.
func (e *Enforcer) ProtectCategory(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := e.Allow(r.Context(), access.Write, r.PathValue("category")); err != nil {
			refuseRequest(w, r, err)
			return
		}
		next.ServeHTTP(w, r)
	})
}
