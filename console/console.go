// Package console is the web console: pages for browsers that show a cell by the same calls that the command line makes. The assets are what
// is served: there is no build step, no framework, and nothing that comes from elsewhere. They hold no data, so everybody may have them;
// what a page asks for is allowed or refused like any other call.
//
// Start reading at assets/app.js (which page is shown), assets/api.js (calls) and assets/dom.js (all texts reach the page through it).
package console

import (
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"errors"
	"io/fs"
	"net/http"
	"path"
)

// Pattern is the path of the assets. The first page is also served at "/".
const Pattern = "GET /console/"

//go:embed assets
var embedded embed.FS

// policy lets a page load and call what its own address serves, and nothing else. No text can become HTML or code: the pages use no sink that
// Trusted Types guard, and have no policy that would fill one.
const policy = "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// Handler serves the assets.
type Handler struct {
	assets map[string]servedAsset // by path
}

type servedAsset struct {
	body        []byte
	contentType string
	etag        string
}

// contentTypes do not depend on the machine's tables.
var contentTypes = map[string]string{
	".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml",
}

// New returns the handler.
func New() (*Handler, error) {
	h := &Handler{assets: make(map[string]servedAsset)}
	err := fs.WalkDir(embedded, "assets", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		body, err := embedded.ReadFile(name)
		if err != nil {
			return err
		}
		kind, known := contentTypes[path.Ext(name)]
		if !known {
			return errors.New("console: no content type for " + name)
		}
		sum := sha256.Sum256(body)
		h.assets["/console/"+path.Base(name)] = servedAsset{body, kind, `"` + base64.RawURLEncoding.EncodeToString(sum[:12]) + `"`}
		return nil
	})
	first := h.assets["/console/index.html"]
	h.assets["/"], h.assets["/console/"] = first, first
	return h, err
}

// ServeHTTP serves an asset.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a, ok := h.assets[r.URL.Path]
	if !ok {
		http.NotFound(w, r)
		return
	}
	header := w.Header()
	header.Set("Content-Security-Policy", policy)
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Referrer-Policy", "no-referrer")
	header.Set("Cross-Origin-Opener-Policy", "same-origin")
	header.Set("Cache-Control", "no-cache") // kept, and asked for by its ETag: pages and program are of one version
	header.Set("ETag", a.etag)
	if r.Header.Get("If-None-Match") == a.etag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	header.Set("Content-Type", a.contentType)
	if r.Method == http.MethodHead {
		return
	}
	_, _ = w.Write(a.body) // fails only if the client went away
}
