package sqlserver

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"scribe/internal/role/restrict"
)

// TestAnswersOfProcessesThatKnowNoLimits: an answer that does not say that the restriction was heeded is not read.
func TestAnswersOfProcessesThatKnowNoLimits(t *testing.T) {
	limit, err := restrict.ParseLimit("where region = 'eu'")
	if err != nil {
		t.Fatal(err)
	}
	r := restrict.New(limit)
	var said, answer string
	status := http.StatusOK
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if said = req.Header.Get(restrict.Header); answer != "" {
			w.Header().Set(restrict.Header, answer)
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, "the rows")
	}))
	defer s.Close()
	hc := &http.Client{Transport: &restrictedTransport{next: http.DefaultTransport, says: r.Encode(), heeded: r.Digest().Text()}}
	get := func() (string, error) {
		res, err := hc.Get(s.URL)
		if err != nil {
			return "", err
		}
		defer func() { _ = res.Body.Close() }()
		body, err := io.ReadAll(res.Body)
		return string(body), err
	}
	for _, c := range []struct {
		answer string
		status int
		read   bool
	}{
		{r.Digest().Text(), http.StatusOK, true},
		{r.Digest().Text(), http.StatusBadRequest, true},
		{"", http.StatusOK, false},
		{restrict.Digest{}.Text(), http.StatusOK, false},
		{"", http.StatusBadRequest, false}, // an error may name what is hidden
		{"", http.StatusForbidden, true},
		{"", http.StatusServiceUnavailable, true},
	} {
		answer, status = c.answer, c.status
		text, err := get()
		if (err == nil) != c.read || c.read != (text != "") || !c.read && !strings.Contains(err.Error(), "rows and columns") {
			t.Errorf("%d with %q: %q, %v", c.status, c.answer, text, err)
		}
		if again, err := restrict.Decode(said); err != nil || again.Digest() != r.Digest() {
			t.Errorf("the request says %q", said)
		}
	}
	g := &Server{}
	if _, err := g.clientOptions(r); err == nil {
		t.Error("limits can't be told without connections to the cell")
	}
	if opts, err := g.clientOptions(nil); err != nil || len(opts) != 0 {
		t.Errorf("without limits: %v, %v", opts, err)
	}
}
