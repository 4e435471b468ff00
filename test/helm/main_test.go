package helm

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"scribe/test/program"
)

// chart is the folder of the chart.
const chart = "../../deploy/helm/scribe"

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "scribe-helm-")
	if err != nil {
		panic(err)
	}
	buildRenderer = sync.OnceValues(func() (string, error) { return build(filepath.Join(dir, "render")) })
	code := program.Main(m)
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// buildRenderer returns the program that renders charts.
var buildRenderer func() (string, error)

// lackingError means that the renderer can't be built here, as its modules are not there.
type lackingError struct{ text string }

// Error implements error.
func (e *lackingError) Error() string { return e.text }

func build(binary string) (string, error) {
	list := program.Command(context.Background(), "go", "list", "-deps", ".")
	list.Dir = "render"
	if out, err := list.CombinedOutput(); err != nil {
		return "", &lackingError{fmt.Sprintf("the modules of test/helm/render can't be had: %v\n%s", err, out)}
	}
	compile := program.Command(context.Background(), "go", "build", "-o", binary, ".")
	compile.Dir, compile.Stderr = "render", os.Stderr
	return binary, compile.Run()
}

// render renders the chart with files of values, the last of which wins.
func render(t *testing.T, files ...string) (release, error) {
	t.Helper()
	return renderChart(t, chart, files...)
}

// renderChart renders a chart in a folder or a file.
func renderChart(t *testing.T, chart string, files ...string) (release, error) {
	t.Helper()
	seeChart(t)
	binary, err := buildRenderer()
	if lacking := (*lackingError)(nil); asLacking(err, &lacking) && os.Getenv("SCRIBE_CI") == "" {
		t.Skip(lacking.text)
	}
	if err != nil {
		t.Fatalf("build the renderer: %v", err)
	}
	var stdout, stderr bytes.Buffer
	cmd := program.Command(t.Context(), binary, "-chart", chart, "-values", strings.Join(files, ","))
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return release{}, fmt.Errorf("%w: %s", err, stderr.Bytes())
	}
	r := release{t: t, notes: stderr.String()}
	if err := json.Unmarshal(stdout.Bytes(), &r.objects); err != nil {
		t.Fatal(err)
	}
	return r, nil
}

func asLacking(err error, lacking **lackingError) bool {
	e, ok := err.(*lackingError) //nolint:errorlint // build returns it as it is
	*lacking = e
	return ok
}

// mustRender is render for values that are right.
func mustRender(t *testing.T, files ...string) release {
	t.Helper()
	r, err := render(t, files...)
	if err != nil {
		t.Fatalf("%s: %v", files, err)
	}
	return r
}

// seeChart looks at each file that decides what is rendered: go test would take the result of an earlier run otherwise, as only other programs read them.
func seeChart(t *testing.T) {
	t.Helper()
	for _, root := range []string{chart, "../../deploy/prometheus", "../../deploy/grafana", "render"} {
		err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
			if err == nil {
				_, err = os.Stat(path)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// shapes are the files of values that must render.
func shapes(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob(chart + "/ci/*.yaml")
	if err != nil || len(files) < 6 {
		t.Fatalf("values in %s/ci: %q, %v", chart, files, err)
	}
	return files
}

// with writes values that are laid over those of a file.
func with(t *testing.T, values string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "values.yaml")
	if err := os.WriteFile(file, []byte(values), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func readText(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
