package syslog

import (
	"net"
	"time"

	"scribe/internal/base/config"
	"scribe/internal/base/units"
	"scribe/internal/format/record"
	"scribe/scribed/inputs"
)

// Config says where messages come from and how they are converted. Start from [DefaultConfig].
type Config struct {
	// Name is the input's name in metrics and logs.
	Name string `yaml:"name" default:"syslog"`
	// UDP is an address, host:port; Unix the path of a datagram socket; TCP an address, optionally with TLS. Empty = not used.
	UDP  string              `yaml:"udp"`
	Unix string              `yaml:"unix"`
	TCP  inputs.ListenConfig `yaml:"tcp" check:"off"`
	// Category is a template with the fields {facility}, {severity}, {host} and {app}.
	Category string `yaml:"category" default:"syslog"`
	// MaxCategories bounds how many categories the template creates; the messages of further ones go to Fallback.
	MaxCategories int    `yaml:"max_categories" default:"1000" min:"1" max:"1000000"`
	Fallback      string `yaml:"fallback" default:"syslog.other"`
	// Protocol is auto, rfc5424 or rfc3164.
	Protocol string `yaml:"protocol" default:"auto" oneof:"auto rfc5424 rfc3164"`
	// Format is that of the payload: raw, message or json.
	Format string `yaml:"format" default:"raw" oneof:"raw message json"`
	// Unparsed says what happens to messages that match neither RFC: keep or drop.
	Unparsed string `yaml:"unparsed" default:"keep" oneof:"keep drop"`
	// HostKey makes the host the message's key.
	HostKey bool `yaml:"host_key"`
	// Location is the time zone of times without one: a name of the IANA database, UTC or Local.
	Location string `yaml:"location" default:"Local"`
	// MaxMessage bounds a message; longer ones are cut. Every receiver must accept 480 bytes (RFC 5424 section 6.1).
	MaxMessage units.Bytes `yaml:"max_message" default:"64KiB" min:"480B" max:"1MiB"`
	// MaxConnections bounds TCP connections. A connection that is silent for IdleTimeout is closed.
	MaxConnections int            `yaml:"max_connections" default:"1000" min:"1" max:"100000"`
	IdleTimeout    units.Duration `yaml:"idle_timeout" default:"10m" min:"1s"`
	// ReceiveBuffer is the receive buffer requested from the kernel for datagrams; 0 = its default.
	ReceiveBuffer units.Bytes `yaml:"receive_buffer" default:"4MiB" min:"0B" max:"1GiB"`
}

// DefaultConfig returns a configuration without listen addresses.
func DefaultConfig() Config { return config.Defaults[Config]() }

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

// compiledConfig holds the parsed values of a configuration.
type compiledConfig struct {
	category inputs.CategoryTemplate
	location *time.Location
}

// Validate reports every violation.
func (c *Config) Validate() error {
	_, err := c.compile()
	return err
}

func (c *Config) compile() (r compiledConfig, err error) {
	v := inputs.CheckConfig("syslog", c.Name, c)
	if c.UDP == "" && c.Unix == "" && c.TCP.Address == "" {
		v.Add("UDP", "missing: want one of udp, tcp and unix")
	}
	if c.UDP != "" {
		if _, port, err := net.SplitHostPort(c.UDP); err != nil || port == "" {
			v.Add("UDP", "invalid value %q: want host:port", c.UDP)
		}
	}
	if c.TCP.Address != "" {
		v.Join("TCP", c.TCP.Validate())
	}
	if c.TCP.TokenFile != "" {
		v.Add("TCP.TokenFile", "syslog carries no tokens")
	}
	if r.category, err = inputs.ParseCategoryTemplate(c.Category, "facility", "severity", "host", "app"); err != nil {
		v.Add("Category", "%w", err)
	}
	if record.ValidateCategory(c.Fallback) != nil {
		v.Add("Fallback", "invalid value %q: want the name of a category", c.Fallback)
	}
	if r.location, err = time.LoadLocation(c.Location); err != nil {
		v.Add("Location", "%w", err)
	}
	return r, v.Err()
}
