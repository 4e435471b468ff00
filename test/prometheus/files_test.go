package prometheus

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// ruleFiles are the files of rules that Prometheus gets.
var ruleFiles = []string{"recording.yml", "alerts.yml"}

// rule is a rule of Prometheus: it records a series, or is an alert.
type rule struct {
	Record      string            `yaml:"record"`
	Alert       string            `yaml:"alert"`
	Expr        string            `yaml:"expr"`
	Labels      map[string]string `yaml:"labels"`
	Annotations map[string]string `yaml:"annotations"`
}

// readRules returns all rules.
func readRules(t testing.TB) (rules []rule) {
	t.Helper()
	for _, name := range ruleFiles {
		var file struct {
			Groups []struct {
				Rules []rule `yaml:"rules"`
			} `yaml:"groups"`
		}
		if err := yaml.Unmarshal([]byte(readText(t, deployed("prometheus", name))), &file); err != nil {
			t.Fatal(err)
		}
		for _, g := range file.Groups {
			rules = append(rules, g.Rules...)
		}
	}
	return rules
}

// dashboard is what these tests look at of a dashboard of Grafana.
type dashboard struct {
	file   string
	UID    string  `json:"uid"`
	Panels []panel `json:"panels"`

	Templating struct {
		List []struct {
			Name string `json:"name"`
		} `json:"list"`
	} `json:"templating"`
}

type panel struct {
	ID      int    `json:"id"`
	Type    string `json:"type"`
	Title   string `json:"title"`
	GridPos struct {
		H, W, X, Y int
	} `json:"gridPos"`
	Targets []struct {
		Expr  string `json:"expr"`
		RefID string `json:"refId"`
	} `json:"targets"`
}

func readDashboards(t testing.TB) (boards []dashboard) {
	t.Helper()
	files, err := filepath.Glob(deployed("grafana", "*.json"))
	if err != nil || len(files) < 4 {
		t.Fatalf("dashboards: %q, %v", files, err)
	}
	for _, file := range files {
		d := dashboard{file: filepath.Base(file)}
		if err := json.Unmarshal([]byte(readText(t, file)), &d); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		boards = append(boards, d)
	}
	return boards
}

// chosen puts values in the place of a dashboard's variables: everything that is called Scribe, over a span.
func chosen(expr, span string) string {
	return strings.NewReplacer(`="$job"`, `=~"scribe.*"`, "$__rate_interval", span, "$instance", ".*", "$owner", ".*", "$category", ".*").Replace(expr)
}

// TestRules: Prometheus takes the rules and the example of its configuration, and every alert passes its unit test.
func TestRules(t *testing.T) {
	t.Parallel()
	promtool(t, "check", "rules", deployed("prometheus", "recording.yml"), deployed("prometheus", "alerts.yml"))
	promtool(t, "check", "config", deployed("prometheus", "prometheus.yml"))
	promtool(t, "test", "rules", deployed("prometheus", "alerts_test.yml"))
}

// TestEveryAlertIsTested: an alert has a unit test in which it fires, and one in which it doesn't.
func TestEveryAlertIsTested(t *testing.T) {
	var file struct {
		Tests []struct {
			Name   string `yaml:"name"`
			Checks []struct {
				Alert string           `yaml:"alertname"`
				Fires []map[string]any `yaml:"exp_alerts"`
			} `yaml:"alert_rule_test"`
		} `yaml:"tests"`
	}
	if err := yaml.Unmarshal([]byte(readText(t, deployed("prometheus", "alerts_test.yml"))), &file); err != nil {
		t.Fatal(err)
	}
	fires, quiet := map[string]bool{}, map[string]bool{}
	for _, test := range file.Tests {
		for _, c := range test.Checks {
			if len(c.Fires) > 0 {
				fires[c.Alert] = true
			} else {
				quiet[c.Alert] = true
			}
		}
	}
	for _, r := range readRules(t) {
		if r.Alert != "" && (!fires[r.Alert] || !quiet[r.Alert]) {
			t.Errorf("%s is not tested to fire and to be quiet in alerts_test.yml", r.Alert)
		}
	}
}

// TestRunbooks: every alert says how urgent it is, what is wrong and what follows, and leads to a section of docs/operations.md, whose
// sections of alerts have all an alert.
func TestRunbooks(t *testing.T) {
	sections := map[string]bool{}
	for line := range strings.Lines(readText(t, filepath.Join("..", "..", "docs", "operations.md"))) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "### Scribe"); ok {
			sections["docs/operations.md#scribe"+strings.ToLower(name)] = true
		}
	}
	for _, r := range readRules(t) {
		if r.Alert == "" {
			continue
		}
		if !slices.Contains([]string{"page", "ticket"}, r.Labels["severity"]) || r.Annotations["summary"] == "" || r.Annotations["description"] == "" {
			t.Errorf("%s lacks its severity, summary or description", r.Alert)
		}
		if link := r.Annotations["runbook"]; link != "docs/operations.md#"+strings.ToLower(r.Alert) || !sections[link] {
			t.Errorf("%s: there is no runbook at %q", r.Alert, link)
		} else {
			delete(sections, link)
		}
	}
	for link := range sections {
		t.Errorf("%s is the runbook of no alert", link)
	}
}

// TestDashboards: panels have numbers and places of their own, and every expression is one of PromQL with the variables of its dashboard.
func TestDashboards(t *testing.T) {
	variable := regexp.MustCompile(`\$([a-z]+)`)
	uids := map[string]bool{}
	var rules strings.Builder
	rules.WriteString("groups:\n  - name: dashboards\n    rules:\n")
	for _, d := range readDashboards(t) {
		if uids[d.UID] || d.UID+".json" != d.file {
			t.Errorf("%s has the uid %q", d.file, d.UID)
		}
		uids[d.UID] = true
		known := map[string]bool{}
		for _, v := range d.Templating.List {
			known[v.Name] = true
		}
		ids, places := map[int]bool{}, map[string]string{}
		for _, p := range d.Panels {
			if p.Title == "" || ids[p.ID] || p.GridPos.X+p.GridPos.W > 24 {
				t.Errorf("%s, panel %d %q: no title, a number that another has, or beyond the edge", d.file, p.ID, p.Title)
			}
			ids[p.ID] = true
			for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
				for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
					place := fmt.Sprint(x, " ", y)
					if other, taken := places[place]; taken {
						t.Fatalf("%s: %q lies over %q", d.file, p.Title, other)
					}
					places[place] = p.Title
				}
			}
			if (p.Type == "row") != (len(p.Targets) == 0) {
				t.Errorf("%s: %q has %d expressions", d.file, p.Title, len(p.Targets))
			}
			for _, target := range p.Targets {
				for _, m := range variable.FindAllStringSubmatch(target.Expr, -1) {
					if !known[m[1]] {
						t.Errorf("%s: %q uses $%s, which is no variable of the dashboard", d.file, p.Title, m[1])
					}
				}
				fmt.Fprintf(&rules, "      - {record: %q, expr: %q}\n", fmt.Sprintf("%s:%d:%s", strings.ReplaceAll(d.UID, "-", "_"), p.ID, target.RefID), chosen(target.Expr, "5m"))
			}
		}
	}
	file := filepath.Join(t.TempDir(), "dashboards.yml")
	writeFile(t, file, rules.String())
	promtool(t, "check", "rules", file)
}
