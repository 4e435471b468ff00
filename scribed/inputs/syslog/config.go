package syslog

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"scribe/internal/base/units"
	"scribe/internal/format/record"
	"scribe/scribed/inputs"
)

// Config says where messages come from and what becomes of them. Start from [DefaultConfig].
type Config struct {
	// Name of the input, in metrics and logs.
	Name string `yaml:"name"`
	// UDP is an address, host:port; Unix the path of a datagram socket; TCP an address, maybe with TLS. Empty = not.
	UDP  string              `yaml:"udp"`
	Unix string              `yaml:"unix"`
	TCP  inputs.ListenConfig `yaml:"tcp"`
	// Category is a template with the fields {facility}, {severity}, {host} and {app}.
	Category string `yaml:"category"`
	// MaxCategories bounds how many categories the template makes; more messages go to Fallback.
	MaxCategories int    `yaml:"max_categories"`
	Fallback      string `yaml:"fallback"`
	// Protocol is auto, rfc5424 or rfc3164.
	Protocol string `yaml:"protocol"`
	// Format of the payload: raw, message or json.
	Format string `yaml:"format"`
	// Unparsed messages are kept or dropped: keep, drop.
	Unparsed string `yaml:"unparsed"`
	// HostKey makes the host the message's key.
	HostKey bool `yaml:"host_key"`
	// Location is the zone of times without one: a name of the IANA database, UTC or Local.
	Location string `yaml:"location"`
	// MaxMessage bounds a message; what is longer is cut.
	MaxMessage units.Bytes `yaml:"max_message"`
	// MaxConnections bounds TCP connections. One that is silent for IdleTimeout is closed.
	MaxConnections int            `yaml:"max_connections"`
	IdleTimeout    units.Duration `yaml:"idle_timeout"`
	// ReceiveBuffer is asked of the kernel for datagrams; 0 = its default.
	ReceiveBuffer units.Bytes `yaml:"receive_buffer"`
}

// DefaultConfig listens nowhere.
func DefaultConfig() Config {
	return Config{
		Name: "syslog", Category: "syslog", MaxCategories: 1000, Fallback: "syslog.other", Protocol: auto, Format: formatRaw, Unparsed: keep,
		Location: "Local", MaxMessage: 64 << 10, MaxConnections: 1000, IdleTimeout: units.Duration(10 * time.Minute), ReceiveBuffer: 4 << 20,
	}
}

// Values of Protocol, Format and Unparsed.
const (
	auto          = "auto"
	rfc5424Name   = "rfc5424"
	rfc3164Name   = "rfc3164"
	formatRaw     = "raw"
	formatMessage = "message"
	formatJSON    = "json"
	keep          = "keep"
	drop          = "drop"
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
func (c *Config) Validate() error { return errors.Join(c.Faults("syslog " + c.Name)...) }

// Faults returns what can't be right; field names the input in the configuration.
func (c *Config) Faults(field string) []error {
	_, faults := c.compile(field)
	return faults
}

// compiledConfig are what a configuration compiles to.
type compiledConfig struct {
	category inputs.CategoryTemplate
	location *time.Location
}

func (c *Config) compile(field string) (r compiledConfig, faults []error) {
	fault := func(format string, args ...any) {
		faults = append(faults, fmt.Errorf("%s."+format, append([]any{field}, args...)...))
	}
	var err error
	if record.ValidateCategory(c.Name) != nil {
		fault("name: a name of letters, digits, '.', '_' and '-' is needed")
	}
	if c.UDP == "" && c.Unix == "" && c.TCP.Address == "" {
		faults = append(faults, fmt.Errorf("%s: one of udp, tcp and unix is needed", field))
	}
	if c.UDP != "" {
		if _, port, err := net.SplitHostPort(c.UDP); err != nil || port == "" {
			fault("udp: %q is not of the form host:port", c.UDP)
		}
	}
	if c.TCP.Address != "" {
		faults = append(faults, c.TCP.Faults(field+".tcp")...)
	}
	if c.TCP.TokenFile != "" {
		fault("tcp.token_file: syslog carries no tokens")
	}
	if r.category, err = inputs.ParseCategoryTemplate(c.Category, "facility", "severity", "host", "app"); err != nil {
		fault("category: %w", err)
	}
	if record.ValidateCategory(c.Fallback) != nil {
		fault("fallback: %q is not a category's name", c.Fallback)
	}
	for _, x := range []struct {
		field, value string
		of           []string
	}{
		{"protocol", c.Protocol, []string{auto, rfc5424Name, rfc3164Name}},
		{"format", c.Format, []string{formatRaw, formatMessage, formatJSON}},
		{"unparsed", c.Unparsed, []string{keep, drop}},
	} {
		if !slices.Contains(x.of, x.value) {
			fault("%s: %q is none of %v", x.field, x.value, x.of)
		}
	}
	if r.location, err = time.LoadLocation(c.Location); err != nil {
		fault("location: %w", err)
	}
	within := func(field string, v, low, high int64) {
		if v < low || v > high {
			fault("%s: %d is outside %d to %d", field, v, low, high)
		}
	}
	within("max_message", int64(c.MaxMessage), 480, 1<<20) // what every receiver must take, RFC 5424 section 6.1
	within("max_connections", int64(c.MaxConnections), 1, 100_000)
	within("max_categories", int64(c.MaxCategories), 1, 1_000_000)
	within("receive_buffer", int64(c.ReceiveBuffer), 0, 1<<30)
	if c.IdleTimeout.Std() < time.Second {
		fault("idle_timeout: %v is below 1s", c.IdleTimeout)
	}
	return r, faults
}
