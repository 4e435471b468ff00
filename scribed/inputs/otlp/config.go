package otlp

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"scribe/internal/base/units"
	"scribe/internal/format/record"
	"scribe/scribed/inputs"
)

// Config says where logs are taken and what becomes of them. Start from [DefaultConfig].
type Config struct {
	// Name of the input, in metrics and logs.
	Name string `yaml:"name"`
	// Listen is where OTLP/HTTP and OTLP/gRPC are served; exporters expect port 4318 and 4317.
	Listen inputs.ListenConfig `yaml:"listen"`
	// Category is a template with the fields {service.name}, {service.namespace} and {severity}.
	Category string `yaml:"category"`
	// MaxCategories bounds how many categories the template makes; more records go to Fallback.
	MaxCategories int    `yaml:"max_categories"`
	Fallback      string `yaml:"fallback"`
	// Format of the payload: body, json or protobuf.
	Format string `yaml:"format"`
	// MaxRequest bounds a request, before and after decompression, MaxRecord a message's payload.
	MaxRequest units.Bytes `yaml:"max_request"`
	MaxRecord  units.Bytes `yaml:"max_record"`
	// MaxAttributes bounds the attributes of a message, MaxValue each of their values; MaxAttributes 0 = none.
	MaxAttributes int         `yaml:"max_attributes"`
	MaxValue      units.Bytes `yaml:"max_value"`
	// MaxRequests bounds requests at the same time; more are told to come again.
	MaxRequests int `yaml:"max_requests"`
	// Patience is how long a request waits for room in the agent, and how long its body may stand still.
	Patience units.Duration `yaml:"patience"`
}

// DefaultConfig listens nowhere.
func DefaultConfig() Config {
	return Config{
		Name: "otlp", Category: "otel.{service.name}", MaxCategories: 1000, Fallback: "otel.other", Format: formatBody,
		MaxRequest: 16 << 20, MaxRecord: 1 << 20, MaxAttributes: 64, MaxValue: 8 << 10, MaxRequests: 16,
		Patience: units.Duration(10 * time.Second),
	}
}

// Values of Format.
const (
	formatBody     = "body"
	formatJSON     = "json"
	formatProtobuf = "protobuf"
)

// Fields of Category.
const (
	fieldService   = "service.name"
	fieldNamespace = "service.namespace"
	fieldSeverity  = "severity"
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
func (c *Config) Validate() error { return errors.Join(c.Faults("otlp " + c.Name)...) }

// Faults returns what can't be right; field names the input in the configuration.
func (c *Config) Faults(field string) []error {
	_, faults := c.compile(field)
	return faults
}

func (c *Config) compile(field string) (t inputs.CategoryTemplate, faults []error) {
	fault := func(format string, args ...any) {
		faults = append(faults, fmt.Errorf("%s."+format, append([]any{field}, args...)...))
	}
	var err error
	faults = append(faults, c.Listen.Faults(field+".listen")...)
	if record.ValidateCategory(c.Name) != nil {
		fault("name: a name of letters, digits, '.', '_' and '-' is needed")
	}
	if t, err = inputs.ParseCategoryTemplate(c.Category, fieldService, fieldNamespace, fieldSeverity); err != nil {
		fault("category: %w", err)
	}
	if record.ValidateCategory(c.Fallback) != nil {
		fault("fallback: %q is not a category's name", c.Fallback)
	}
	if !slices.Contains([]string{formatBody, formatJSON, formatProtobuf}, c.Format) {
		fault("format: %q is none of body, json, protobuf", c.Format)
	}
	within := func(field string, v, low, high int64) {
		if v < low || v > high {
			fault("%s: %d is outside %d to %d", field, v, low, high)
		}
	}
	within("max_request", int64(c.MaxRequest), 1<<10, 256<<20)
	within("max_record", int64(c.MaxRecord), 1, record.DefaultMaxMessageSize)
	within("max_attributes", int64(c.MaxAttributes), 0, record.MaxAttributes)
	within("max_value", int64(c.MaxValue), 1, 1<<20)
	within("max_requests", int64(c.MaxRequests), 1, 10_000)
	within("max_categories", int64(c.MaxCategories), 1, 1_000_000)
	if c.Patience <= 0 {
		fault("patience: must be above zero")
	}
	return t, faults
}
