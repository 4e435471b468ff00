package follow

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"time"

	"github.com/bmatcuk/doublestar/v4"

	"scribe/internal/base/units"
	"scribe/internal/format/record"
	"scribe/scribed/inputs"
)

// Config says which files are followed and what becomes of their lines. Start from [DefaultConfig].
type Config struct {
	// Name of the input, in metrics, logs, and of its file of positions.
	Name string `yaml:"name"`
	// Paths are globs; `**` stands for any folders. Exclude takes some out again.
	Paths   []string `yaml:"paths"`
	Exclude []string `yaml:"exclude"`
	// Category is a template with the fields {file} (base name without extension), {dir} (the folder's name), and the named groups
	// of Pattern.
	Category string `yaml:"category"`
	// Pattern is a regular expression over the path; its named groups are fields of Category. A path that it does not match is
	// not followed.
	Pattern string `yaml:"pattern"`
	// Start is where files begin that are there when the input runs for the first time: beginning or end. Files that appear later
	// are read from their beginning.
	Start string `yaml:"start"`
	// MaxLine bounds a message. LongLines says what happens to longer ones: split, truncate or drop.
	MaxLine   units.Bytes `yaml:"max_line"`
	LongLines string      `yaml:"long_lines"`
	// Multiline, when not empty, is a regular expression that the first line of a message matches; lines that do not match belong
	// to the message before.
	Multiline string `yaml:"multiline"`
	// MultilineWait is how long a message of several lines may wait for its next one.
	MultilineWait units.Duration `yaml:"multiline_wait"`
	// IgnoreOlder leaves files alone whose last change is older, when they are seen first; 0 = none.
	IgnoreOlder units.Duration `yaml:"ignore_older"`
	// Interval is the time between two looks at the files.
	Interval units.Duration `yaml:"interval"`
	// Fingerprint is how many bytes from a file's beginning, and before its position, tell it from another.
	Fingerprint units.Bytes `yaml:"fingerprint"`
	// Batch bounds the bytes that are read and delivered at once.
	Batch units.Bytes `yaml:"batch"`
	// MaxOpen bounds open files. MaxFiles bounds those that are followed; what is beyond is counted and left alone.
	MaxOpen  int `yaml:"max_open"`
	MaxFiles int `yaml:"max_files"`
	// Forget is how long the position of a file that is gone is kept.
	Forget units.Duration `yaml:"forget"`
	// PathAttribute and HostAttribute name attributes that carry the file's path and the host's name; empty = none.
	PathAttribute string `yaml:"path_attribute"`
	HostAttribute string `yaml:"host_attribute"`
}

// DefaultConfig follows nothing yet.
func DefaultConfig() Config {
	return Config{
		Exclude:       []string{"**/*.gz", "**/*.zst", "**/*.xz", "**/*.bz2"},
		Start:         startBeginning,
		MaxLine:       1 << 20,
		LongLines:     longSplit,
		MultilineWait: units.Duration(time.Second),
		Interval:      units.Duration(500 * time.Millisecond),
		Fingerprint:   1 << 10,
		Batch:         1 << 20,
		MaxOpen:       256,
		MaxFiles:      10_000,
		Forget:        units.Duration(7 * 24 * time.Hour),
	}
}

// Values of Start and LongLines.
const (
	startBeginning = "beginning"
	startEnd       = "end"
	longSplit      = "split"
	longTruncate   = "truncate"
	longDrop       = "drop"
)

// UnmarshalYAML lays what is written over the defaults.
func (c *Config) UnmarshalYAML(decode func(any) error) error {
	type plain Config // without this method
	p := plain(DefaultConfig())
	if err := decode(&p); err != nil {
		return err
	}
	*c = Config(p)
	return nil
}

// Validate reports every fault.
func (c *Config) Validate() error { return errors.Join(c.Faults("follow " + c.Name)...) }

// Faults returns what can't be right; field names the input in the configuration.
func (c *Config) Faults(field string) []error {
	_, faults := c.compile(field)
	return faults
}

// compiledConfig are what a configuration compiles to.
type compiledConfig struct {
	category  inputs.CategoryTemplate
	pattern   *regexp.Regexp // nil = none
	multiline *regexp.Regexp // nil = none
}

func (c *Config) compile(field string) (r compiledConfig, faults []error) {
	fault := func(format string, args ...any) {
		faults = append(faults, fmt.Errorf("%s."+format, append([]any{field}, args...)...))
	}
	var err error
	if record.ValidateCategory(c.Name) != nil {
		fault("name: a name of letters, digits, '.', '_' and '-' is needed")
	}
	if len(c.Paths) == 0 {
		fault("paths: none given")
	}
	for i, p := range c.Paths {
		if !doublestar.ValidatePathPattern(p) {
			fault("paths[%d]: %q is not a pattern", i, p)
		}
	}
	for i, p := range c.Exclude {
		if !doublestar.ValidatePathPattern(p) {
			fault("exclude[%d]: %q is not a pattern", i, p)
		}
	}
	fields := []string{"file", "dir"}
	if c.Pattern != "" {
		if r.pattern, err = regexp.Compile(c.Pattern); err != nil {
			fault("pattern: %w", err)
		} else {
			for _, name := range r.pattern.SubexpNames() {
				if name != "" {
					fields = append(fields, name)
				}
			}
		}
	}
	if r.category, err = inputs.ParseCategoryTemplate(c.Category, fields...); err != nil {
		fault("category: %w", err)
	}
	if c.Multiline != "" {
		if r.multiline, err = regexp.Compile(c.Multiline); err != nil {
			fault("multiline: %w", err)
		}
	}
	if c.Start != startBeginning && c.Start != startEnd {
		fault("start: %q is none of beginning, end", c.Start)
	}
	if !slices.Contains([]string{longSplit, longTruncate, longDrop}, c.LongLines) {
		fault("long_lines: %q is none of split, truncate, drop", c.LongLines)
	}
	within := func(field string, v, low, high int64) {
		if v < low || v > high {
			fault("%s: %d is outside %d to %d", field, v, low, high)
		}
	}
	within("max_line", int64(c.MaxLine), 1, record.DefaultMaxMessageSize)
	within("batch", int64(c.Batch), 1, 32<<20)
	within("fingerprint", int64(c.Fingerprint), 16, 64<<10)
	within("max_open", int64(c.MaxOpen), 1, 100_000)
	within("max_files", int64(c.MaxFiles), 1, 1_000_000)
	for _, x := range []struct {
		field string
		d     units.Duration
	}{{"interval", c.Interval}, {"multiline_wait", c.MultilineWait}, {"forget", c.Forget}} {
		if x.d.Std() < time.Millisecond {
			fault("%s: %v is below 1ms", x.field, x.d)
		}
	}
	return r, faults
}
