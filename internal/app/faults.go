package app

import (
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode"

	"scribe/internal/units"
)

// places are where the fields of a package's own configuration stand in that of a process.
var places = map[string]string{
	"admission": "read_proxy.", "collector": "collector.", "deadletter": "spool.", "gateway": "gateway.", "memcached": "read_proxy.memcached.", "readproxy": "read_proxy.",
	"readstream": "streams.", "scribed": "spool.", "spool": "spool.", "views": "read_proxy.views.",
}

// renamed are the fields that have another name in the configuration of a process, with their place.
var renamed = map[string]string{
	"collector.LeaseTTL": "lease_ttl", "deadletter.MaxBytes": "spool.dead_letters",
	"readproxy.FillBytes": "read_proxy.memcached.fill_bytes", "readproxy.SharedAge": "read_proxy.memcached.shared_age",
	"readstream.MaxStreamAge": "streams.max_age", "readstream.MaxStreams": "streams.max", "readstream.TotalBytes": "streams.memory",
	"scribed.BackfillBytesPerSecond": "spool.backfill", "scribed.MemoryBytes": "limits.write_memory", "scribed.Rules": "spool.categories",
	"spool.BallastBytes": "spool.ballast", "spool.SegmentBytes": "spool.segment",
	"views.Views": "read_proxy.views.most",
}

var (
	container   = regexp.MustCompile(`^[A-Z][A-Za-z]*: ([a-z]+: )`)
	packageName = regexp.MustCompile(`^([a-z]+): `)
	fieldName   = regexp.MustCompile(`^([A-Z][A-Za-z]*)(\[\d+\])?`)
	goNumber    = regexp.MustCompile(`\b\d{4,}\b`)
	goDuration  = regexp.MustCompile(`\b(?:\d+h)?\d+m\d+s\b`)
)

// fault is something wrong in the configuration of a process, in the words of that.
type fault string

// Error implements error.
func (f fault) Error() string { return string(f) }

// translated returns the faults that a role finds in its own configuration, under the names, and with the units, of that of the process.
func translated(err error) (faults []error) {
	if err == nil {
		return nil
	}
	for line := range strings.SplitSeq(err.Error(), "\n") {
		faults = append(faults, fault(translate(line)))
	}
	return faults
}

func translate(line string) string {
	line = container.ReplaceAllString(line, "$1")
	pkg := packageName.FindStringSubmatch(line)
	if pkg == nil || places[pkg[1]] == "" {
		return line
	}
	line = line[len(pkg[0]):]
	if container.MatchString(line) { // the configuration of another package in it
		return translate(line)
	}
	field := fieldName.FindStringSubmatch(line)
	if field == nil {
		return strings.TrimSuffix(places[pkg[1]], ".") + ": " + line
	}
	line = goDuration.ReplaceAllStringFunc(line[len(field[1]):], func(text string) string {
		d, err := time.ParseDuration(text)
		if err != nil {
			return text
		}
		return units.Duration(d).String()
	})
	if strings.Contains(line, " times ") { // a bound that is a number of something else
		return places[pkg[1]] + snake(field[1]) + line
	}
	if strings.Contains(field[1], "Bytes") || strings.HasSuffix(field[1], "Memory") || strings.HasSuffix(field[1], "Gap") {
		line = goNumber.ReplaceAllStringFunc(line, func(text string) string {
			n, err := strconv.ParseInt(text, 10, 64)
			if err != nil {
				return text
			}
			return units.Bytes(n).String()
		})
	}
	name := renamed[pkg[1]+"."+field[1]]
	if name == "" {
		name = places[pkg[1]] + snake(field[1])
	}
	return name + line
}

// snake is the name of a Go field as YAML has it.
func snake(name string) string {
	var b strings.Builder
	for i, r := range name {
		if unicode.IsUpper(r) && i > 0 {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}
