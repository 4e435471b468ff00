package follow

import (
	"fmt"
	"regexp"
	"slices"

	"github.com/bmatcuk/doublestar/v4"

	"scribe/internal/base/config"
	"scribe/internal/base/units"
	"scribe/scribed/inputs"
)

// Config says which files are followed and how their lines become messages. Start from [DefaultConfig].
type Config struct {
	// Name is the input's name in metrics and logs, and names its file of positions.
	Name string `yaml:"name"`
	// Paths are globs; `**` matches any folders. Exclude are globs of files that are not followed.
	Paths   []string `yaml:"paths"`
	Exclude []string `yaml:"exclude" default:"**/*.gz,**/*.zst,**/*.xz,**/*.bz2"`
	// Category is a template with the fields {file} (base name without extension), {dir} (the folder's name), and the named
	// groups of Pattern.
	Category string `yaml:"category"`
	// Pattern is a regular expression over the path; its named groups are fields of Category. A file whose path does not match is
	// not followed.
	Pattern string `yaml:"pattern"`
	// Start is where files begin that exist when the input runs for the first time: beginning or end. Later files are read from
	// their beginning.
	Start string `yaml:"start" default:"beginning" oneof:"beginning end"`
	// MaxLine bounds a message. LongLines says what happens to longer ones: split, truncate or drop.
	MaxLine   units.Bytes `yaml:"max_line" default:"1MiB" min:"1B" max:"MaxMessageSize"`
	LongLines string      `yaml:"long_lines" default:"split" oneof:"split truncate drop"`
	// Multiline, if not empty, is a regular expression that matches the first line of a message; lines that do not match belong
	// to the message before.
	Multiline string `yaml:"multiline"`
	// MultilineWait is how long a multi-line message may wait for its next line.
	MultilineWait units.Duration `yaml:"multiline_wait" default:"1s" min:"1ms"`
	// IgnoreOlder ignores files whose last change is older than this when they are first seen; 0 = none.
	IgnoreOlder units.Duration `yaml:"ignore_older"`
	// Interval is the time between two scans of the files.
	Interval units.Duration `yaml:"interval" default:"500ms" min:"1ms"`
	// Fingerprint is how many bytes, from a file's beginning and before its position, identify it.
	Fingerprint units.Bytes `yaml:"fingerprint" default:"1KiB" min:"16B" max:"64KiB"`
	// Batch bounds the bytes that are read and delivered at once.
	Batch units.Bytes `yaml:"batch" default:"1MiB" min:"1B" max:"32MiB"`
	// MaxOpen bounds open files. MaxFiles bounds followed files; further ones are counted and ignored.
	MaxOpen  int `yaml:"max_open" default:"256" min:"1" max:"100000"`
	MaxFiles int `yaml:"max_files" default:"10000" min:"1" max:"1000000"`
	// Forget is how long the position of a missing file is kept.
	Forget units.Duration `yaml:"forget" default:"7d" min:"1ms"`
	// PathAttribute and HostAttribute name the attributes for the file's path and the host's name; empty = none.
	PathAttribute string `yaml:"path_attribute"`
	HostAttribute string `yaml:"host_attribute"`
}

// DefaultConfig returns a configuration without paths.
func DefaultConfig() Config { return config.Defaults[Config]() }

// Values of Start and LongLines.
const (
	startBeginning = "beginning"
	startEnd       = "end"
	longSplit      = "split"
	longTruncate   = "truncate"
	longDrop       = "drop"
)

// compiledConfig holds the parsed values of a configuration.
type compiledConfig struct {
	category  inputs.CategoryTemplate
	pattern   *regexp.Regexp // nil = none
	multiline *regexp.Regexp // nil = none
}

// Validate reports every violation.
func (c *Config) Validate() error {
	_, err := c.compile()
	return err
}

func (c *Config) compile() (r compiledConfig, err error) {
	v := inputs.CheckConfig("follow", c.Name, c)
	if len(c.Paths) == 0 {
		v.Add("Paths", "missing: want patterns of files")
	}
	checkPatterns := func(field string, patterns []string) {
		for i, p := range patterns {
			if !doublestar.ValidatePathPattern(p) {
				v.Add(fmt.Sprintf("%s[%d]", field, i), "invalid value %q: want a pattern of files", p)
			}
		}
	}
	checkPatterns("Paths", c.Paths)
	checkPatterns("Exclude", c.Exclude)
	compile := func(field, text string) *regexp.Regexp {
		if text == "" {
			return nil
		}
		re, err := regexp.Compile(text)
		if err != nil {
			v.Add(field, "%w", err)
		}
		return re
	}
	fields := []string{"file", "dir"}
	if r.pattern = compile("Pattern", c.Pattern); r.pattern != nil {
		fields = append(fields, slices.DeleteFunc(slices.Clone(r.pattern.SubexpNames()), func(name string) bool { return name == "" })...)
	}
	if r.category, err = inputs.ParseCategoryTemplate(c.Category, fields...); err != nil {
		v.Add("Category", "%w", err)
	}
	r.multiline = compile("Multiline", c.Multiline)
	return r, v.Err()
}
