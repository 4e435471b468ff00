package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
)

func TestCountWords(t *testing.T) {
	for name, want := range map[string]int{
		"add": 1, "Close": 1, "S3": 1, "LSN": 1, "LSNs": 1, "URL": 1, "x": 1,
		"addFrame": 2, "HTTPServer": 2, "parseID": 2, "appendLSNs": 2, "isUTF8": 2, "newS3Store": 3, "snake_case": 2, "renumberAfter": 2,
	} {
		if got := countWords(name); got != want {
			t.Errorf("%s: %d words, want %d", name, got, want)
		}
	}
}

// TestShares: names say what they name. franz-go has 25 % of one-word functions, Pebble 40 %.
func TestShares(t *testing.T) {
	declarations, err := readDeclarations("../..")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		what  string
		types bool
		most  int // percent
	}{{"functions", false, 40}, {"types", true, 35}} {
		all, short := countOneWordNames(declarations, c.types)
		if 100*short >= c.most*all {
			t.Errorf("%d of %d %s have one-word names, want under %d %%: see go run -C tools ./names -list ..", short, all, c.what, c.most)
		}
	}
}

// TestWalk: every stop of the walk in CONTRIBUTING.md exists.
func TestWalk(t *testing.T) {
	guide, err := os.ReadFile("../../CONTRIBUTING.md")
	if err != nil {
		t.Fatal(err)
	}
	stops := regexp.MustCompile("`([a-z0-9_/]+\\.go):([A-Za-z0-9_.]+)`").FindAllStringSubmatch(string(guide), -1)
	if len(stops) < 12 {
		t.Fatalf("the walk has %d stops, want a dozen", len(stops))
	}
	for _, stop := range stops {
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join("../..", stop[1]), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Error(err)
			continue
		}
		if !slices.ContainsFunc(file.Decls, func(d ast.Decl) bool {
			f, ok := d.(*ast.FuncDecl)
			return ok && f.Name.Name == stop[2]
		}) {
			t.Errorf("%s has no function %s", stop[1], stop[2])
		}
	}
}
