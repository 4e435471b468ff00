// Names counts how far the names of this repository say what they name: the share of functions and of types whose name is one
// word, and the names that stand for something in more packages than a reader can keep apart.
//
//	go run -C tools ./names ..          the counts, as CONTRIBUTING.md has them
//	go run -C tools ./names -list ../batcher    each one-word name below a folder, with its place
//
// Tests, generated code and main functions don't count. Methods of interfaces that the standard library or a dependency prescribes
// (Error, Close, Read, ...) do: they are as short in the code that this one is compared with.
package main

import (
	"cmp"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode"
)

// maxPackages is in how many packages an unexported name may be declared before it counts as one that a search does not find.
const maxPackages = 3

// declaration is a function or a type of the repository.
type declaration struct {
	name, folder, where string
	isType              bool
}

func main() {
	list := flag.Bool("list", false, "print each one-word name and where it is declared")
	flag.Parse()
	root := "."
	if flag.NArg() > 0 {
		root = flag.Arg(0)
	}
	declarations, err := readDeclarations(root)
	if err != nil {
		fmt.Fprintln(os.Stderr, "names:", err)
		os.Exit(1)
	}
	if *list {
		printOneWordNames(declarations)
		return
	}
	printShare("functions", declarations, false)
	printShare("types", declarations, true)
	printSpread(declarations)
}

// readDeclarations parses every Go file below root that is neither a test nor generated.
func readDeclarations(root string) ([]declaration, error) {
	var declarations []declaration
	files := token.NewFileSet()
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if name := entry.Name(); path != root && (strings.HasPrefix(name, ".") || name == "testdata" || name == "tools") {
				return filepath.SkipDir
			}
			return nil
		}
		if filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		file, err := parser.ParseFile(files, path, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		if !ast.IsGenerated(file) {
			declarations = append(declarations, listDeclarations(files, file)...)
		}
		return nil
	})
	return declarations, err
}

func listDeclarations(files *token.FileSet, file *ast.File) []declaration {
	var declarations []declaration
	add := func(name *ast.Ident, isType bool) {
		at := files.Position(name.Pos())
		declarations = append(declarations, declaration{
			name: name.Name, folder: filepath.Dir(at.Filename), where: fmt.Sprintf("%s:%d", at.Filename, at.Line), isType: isType,
		})
	}
	for _, node := range file.Decls {
		switch node := node.(type) {
		case *ast.FuncDecl:
			if node.Recv != nil || node.Name.Name != "main" && node.Name.Name != "init" {
				add(node.Name, false)
			}
		case *ast.GenDecl:
			for _, spec := range node.Specs {
				if spec, ok := spec.(*ast.TypeSpec); ok {
					add(spec.Name, true)
				}
			}
		}
	}
	return declarations
}

// countWords splits a name where a capital follows a small letter or begins a word after an initialism: appendLSNs is two words,
// HTTPServer two, S3 one.
func countWords(name string) int {
	letters := []rune(strings.Trim(name, "_"))
	words := 1
	for i := 1; i < len(letters); i++ {
		before, here := letters[i-1], letters[i]
		begins := unicode.IsUpper(here) && (!unicode.IsUpper(before) && before != '_' ||
			i+1 < len(letters) && unicode.IsLower(letters[i+1]) && letters[i+1] != 's')
		if begins || here == '_' {
			words++
		}
	}
	return words
}

func countOneWordNames(declarations []declaration, types bool) (all, short int) {
	for _, d := range declarations {
		if d.isType != types {
			continue
		}
		all++
		if countWords(d.name) == 1 {
			short++
		}
	}
	return all, short
}

func printShare(what string, declarations []declaration, types bool) {
	all, short := countOneWordNames(declarations, types)
	fmt.Fprintf(os.Stdout, "%s whose name is one word: %d of %d (%.0f %%)\n", what, short, all, 100*float64(short)/float64(max(all, 1)))
}

// printSpread prints the unexported names that more than maxPackages packages declare.
func printSpread(declarations []declaration) {
	folders := map[string]map[string]bool{}
	for _, d := range declarations {
		if ast.IsExported(d.name) {
			continue
		}
		if folders[d.name] == nil {
			folders[d.name] = map[string]bool{}
		}
		folders[d.name][d.folder] = true
	}
	names := slices.DeleteFunc(slices.Collect(maps.Keys(folders)), func(name string) bool { return len(folders[name]) <= maxPackages })
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(len(folders[b])-len(folders[a]), strings.Compare(a, b))
	})
	fmt.Fprintf(os.Stdout, "unexported names that more than %d packages declare: %d\n", maxPackages, len(names))
	for _, name := range names {
		fmt.Fprintf(os.Stdout, "  %-20s %d\n", name, len(folders[name]))
	}
}

func printOneWordNames(declarations []declaration) {
	for _, d := range declarations {
		if countWords(d.name) > 1 {
			continue
		}
		kind := "func"
		if d.isType {
			kind = "type"
		}
		fmt.Fprintf(os.Stdout, "%s\t%s\t%s\n", kind, d.name, d.where)
	}
}
