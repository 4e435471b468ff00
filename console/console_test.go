package console

import (
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
)

func ask(t *testing.T, h *Handler, method, path, etag string) *http.Response {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), method, path, http.NoBody)
	r.Header.Set("If-None-Match", etag)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result()
}

// TestAssets: what the first page names is there, with the headers that keep a page to its own address, and is not sent twice.
func TestAssets(t *testing.T) {
	h, err := New()
	if err != nil {
		t.Fatal(err)
	}
	total := 0
	for path, a := range h.assets {
		res := ask(t, h, http.MethodGet, path, "")
		if res.StatusCode != http.StatusOK || res.Header.Get("Content-Type") != a.contentType || res.Header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: %s, %v", path, res.Status, res.Header)
		}
		if csp := res.Header.Get("Content-Security-Policy"); !strings.HasPrefix(csp, "default-src 'self';") || !strings.Contains(csp, "frame-ancestors 'none'") {
			t.Errorf("%s: the policy is %q", path, csp)
		}
		if again := ask(t, h, http.MethodGet, path, res.Header.Get("ETag")); again.StatusCode != http.StatusNotModified {
			t.Errorf("%s again: %s", path, again.Status)
		}
		total += len(a.body)
	}
	if total > 256<<10 {
		t.Errorf("all assets have %d bytes, at most 256 KiB are meant", total)
	}
	for _, path := range []string{"/console/none.js", "/console/../console.go", "/nothing"} {
		if res := ask(t, h, http.MethodGet, path, ""); res.StatusCode != http.StatusNotFound {
			t.Errorf("%s: %s", path, res.Status)
		}
	}
	for _, name := range regexp.MustCompile(`(?:src|href)="(/[^"]*)"`).FindAllStringSubmatch(string(h.assets["/"].body), -1) {
		if _, ok := h.assets[name[1]]; !ok {
			t.Errorf("the page names %s, which is not there", name[1])
		}
	}
}

// TestSinks: no script has a way for a text of the cell to become HTML, code or an address. Browsers refuse some of these by the policy.
func TestSinks(t *testing.T) {
	h, err := New()
	if err != nil {
		t.Fatal(err)
	}
	for path, a := range h.assets {
		if !strings.HasSuffix(path, ".js") {
			continue
		}
		for _, sink := range []string{"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "DOMParser", "javascript:", "http://", "https://", "localStorage", "document.cookie"} {
			if text := strings.ReplaceAll(string(a.body), "http://www.w3.org/2000/svg", ""); strings.Contains(text, sink) {
				t.Errorf("%s has %s", path, sink)
			}
		}
	}
}
