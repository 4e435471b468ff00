package config

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"scribe/internal/base/units"
)

type innerConfig struct {
	Workers int `yaml:"workers" default:"4" min:"0"`
}

func (c *innerConfig) Validate() error { return Check("inner", c, nil).Err() }

type queueConfig struct {
	Least int `yaml:"queue_least" default:"1" min:"1"`
	Most  int `yaml:"queue_most" default:"9" min:"Least" max:"100"`
}

type rule struct {
	Match string        `yaml:"match" required:"a pattern"`
	Age   time.Duration `yaml:"age" default:"1h" min:"1s" zero:"off"`
}

type testConfig struct {
	Memory   int64          `yaml:"/limits.memory" default:"2MiB" min:"1MiB" max:"1GiB" flag:"memory,run" help:"most bytes"`
	Rate     float64        `yaml:"rate" default:"0.5" min:">0" max:"10"`
	Network  float64        `yaml:"network" default:"0B" min:"0B" max:"1000TB"`
	Timeout  time.Duration  `yaml:"timeout" default:"1d" min:">0" flag:"timeout"`
	Interval units.Duration `yaml:"interval" default:"250ms" min:"1ms" max:"1h"`
	Floor    *time.Duration `yaml:"floor" min:"0s" max:"1h"`
	Format   string         `yaml:"format" default:"text" oneof:"text json"`
	Deep     bool           `yaml:"deep"`
	Servers  []string       `yaml:"servers"`
	Slot     uint32         `default:"3" min:"1" max:"largest"`
	Queue    queueConfig    `yaml:",inline"`
	Inner    *innerConfig   `yaml:"inner"`
	Rules    []rule         `yaml:"rules"`
	Hidden   queueConfig
}

func TestDefaults(t *testing.T) {
	c := Defaults[testConfig]()
	if c.Memory != 2<<20 || c.Rate != 0.5 || c.Timeout != 24*time.Hour || c.Interval.Std() != 250*time.Millisecond || c.Format != "text" ||
		c.Slot != 3 || c.Queue.Most != 9 || c.Hidden.Most != 9 || c.Inner != nil || c.Floor != nil {
		t.Errorf("%+v", c)
	}
	if err := Check("test", &c, Bounds{"largest": 3}).Err(); err != nil {
		t.Error(err)
	}
}

func TestCheck(t *testing.T) {
	c := testConfig{
		Memory: 1 << 31, Rate: math.NaN(), Network: -1, Timeout: 0, Interval: units.Duration(48 * time.Hour), Floor: new(2 * time.Hour), Format: "xml",
		Slot: 9, Queue: queueConfig{Least: 5, Most: 4}, Inner: &innerConfig{Workers: -1}, Rules: []rule{{Age: 1}, {Match: "a", Age: 0}},
		Hidden: queueConfig{Least: 1, Most: 1},
	}
	v := Check("test", &c, Bounds{"largest": 7})
	v.Add("Deep", "want %d", 7)
	v.Join("Other", nil)
	want := `test: Memory: invalid value 2GiB: want 1MiB to 1GiB
test: Rate: invalid value NaN: want more than 0, and at most 10
test: Network: invalid value -1B: want 0 to 1000TB
test: Timeout: invalid value 0s: want more than 0s
test: Interval: invalid value 2d: want 1ms to 1h
test: Floor: invalid value 2h: want 0s to 1h
test: Format: invalid value "xml": want text or json
test: Slot: invalid value 9: want 1 to 7
test: Queue.Most: invalid value 4: want 5 to 100
test: Inner.Workers: invalid value -1: want at least 0
test: Rules[0].Match: missing: want a pattern
test: Rules[0].Age: invalid value 1ns: want 0 or at least 1s
test: Deep: want 7`
	err := v.Err()
	if err == nil || err.Error() != want {
		t.Errorf("got\n%v\nwant\n%s", err, want)
	}
	var one Violation
	if !errors.As(Errors(err)[9], &one) || one.Field != "Inner.Workers" || one.Package != "test" {
		t.Errorf("got %+v", one)
	}
}

func load(t *testing.T, text string) (c testConfig, err error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c = Defaults[testConfig]()
	return c, Load(file, &c, map[string]string{"keep": "servers"})
}

func TestLoad(t *testing.T) {
	c, err := load(t, `
limits: {memory: 3MiB}
rate: 2
network: 1GB
timeout: 2d
interval: 1s
floor: 5s
deep: yes
servers: [a, b]
queue_least: 0x2
inner:
base: &base {match: "b*"}
rules:
  - {match: a}
  - {match: b, age: 0}
`)
	if err == nil || !strings.Contains(err.Error(), "line 12: unknown field base: the fields here are deep,") {
		t.Errorf("got %v", err)
	}
	if c.Memory != 3<<20 || c.Rate != 2 || c.Network != 1e9 || c.Timeout != 48*time.Hour || c.Interval.Std() != time.Second || *c.Floor != 5*time.Second ||
		!c.Deep || len(c.Servers) != 2 || c.Queue.Least != 2 || c.Inner != nil || len(c.Rules) != 2 || c.Rules[0].Age != time.Hour || c.Rules[1].Age != 0 {
		t.Errorf("%+v", c)
	}
	c, err = load(t, "rules:\n- &a {match: x, age: 1m}\n- {<<: *a, age: 2m}\n- *a\ninner: {}\n")
	if err != nil || len(c.Rules) != 3 || c.Rules[1] != (rule{"x", 2 * time.Minute}) || c.Rules[2] != c.Rules[0] || c.Inner.Workers != 4 {
		t.Errorf("%+v, %v", c, err)
	}
	if c, err = load(t, "# nothing\n"); err != nil || c.Memory != 2<<20 {
		t.Errorf("%+v, %v", c, err)
	}
}

func TestLoadErrors(t *testing.T) {
	_, err := load(t, `limits: {memory: lots, slot: 1}
deep: maybe
queue_most: 1.5
rate: fast
timeout: [1s]
servers: a
inner: {workers: 1, workers: 2}
rules: [{macth: x}, 7]
keep: [a]
Slot: 1
`)
	for _, want := range []string{
		`line 1: limits.memory: "lots" is not a size`, "line 1: unknown field limits.slot: the fields here are memory", "line 2: deep: invalid value \"maybe\": want true or false",
		"line 3: queue_most: invalid value \"1.5\": want a whole number", "line 4: rate: invalid value \"fast\": want a number", "line 5: timeout: want one value",
		"line 6: servers: want a list", "line 7: inner.workers is given twice", "line 8: unknown field rules[0].macth", "line 8: rules[1]: want fields", "line 9: keep is called servers now", "line 10: unknown field Slot",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("it lacks %q", want)
		}
	}
	if t.Failed() {
		t.Log(err)
	}
}

func TestSettings(t *testing.T) {
	c := Defaults[testConfig]()
	c.Inner, c.Rules = &innerConfig{}, []rule{{}}
	names, flags := map[string]string{}, map[string]string{}
	for s := range Settings(&c) {
		names[s.Field] = s.Name
		for _, command := range []string{"run", "up"} {
			if name, ok := s.Flag(command); ok {
				flags[command+" "+name] = s.Type() + " " + s.String() + " " + s.Help()
			}
		}
	}
	for field, name := range map[string]string{
		"Memory": "limits.memory", "Queue.Least": "queue_least", "Inner.Workers": "inner.workers", "Rules[0].Age": "rules[0].age", "Slot": "", "Hidden.Least": "",
	} {
		if got, ok := names[field]; !ok || got != name {
			t.Errorf("%s is %q, want %q", field, got, name)
		}
	}
	if len(flags) != 2 || flags["run memory"] != "size 2MiB most bytes" || flags["up timeout"] != "duration 1d " {
		t.Errorf("%v", flags)
	}
}
