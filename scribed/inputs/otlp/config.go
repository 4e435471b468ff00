package otlp

import (
	"scribe/internal/base/config"
	"scribe/internal/base/units"
	"scribe/internal/format/record"
	"scribe/scribed/inputs"
)

// Config says where logs are accepted and how they become messages. Start from [DefaultConfig].
type Config struct {
	// Name is the input's name in metrics and logs.
	Name string `yaml:"name" default:"otlp"`
	// Listen is where OTLP/HTTP and OTLP/gRPC are served; exporters expect port 4318 and 4317.
	Listen inputs.ListenConfig `yaml:"listen"`
	// Category is a template with the fields {service.name}, {service.namespace} and {severity}.
	Category string `yaml:"category" default:"otel.{service.name}"`
	// MaxCategories bounds how many categories the template creates; the records of further ones go to Fallback.
	MaxCategories int    `yaml:"max_categories" default:"1000" min:"1" max:"1000000"`
	Fallback      string `yaml:"fallback" default:"otel.other"`
	// Format is that of the payload: body, json or protobuf.
	Format string `yaml:"format" default:"body" oneof:"body json protobuf"`
	// MaxRequest bounds a request, before and after decompression, MaxRecord a message's payload.
	MaxRequest units.Bytes `yaml:"max_request" default:"16MiB" min:"1KiB" max:"256MiB"`
	MaxRecord  units.Bytes `yaml:"max_record" default:"1MiB" min:"1B" max:"MaxMessageSize"`
	// MaxAttributes bounds the attributes of a message, MaxValue each of their values; MaxAttributes 0 = none.
	MaxAttributes int         `yaml:"max_attributes" default:"64" min:"0" max:"MaxAttributesOfAll"`
	MaxValue      units.Bytes `yaml:"max_value" default:"8KiB" min:"1B" max:"1MiB"`
	// MaxRequests bounds concurrent requests; further ones are told to retry.
	MaxRequests int `yaml:"max_requests" default:"16" min:"1" max:"10000"`
	// Patience is how long a request waits for capacity in the agent, and how long its body may make no progress.
	Patience units.Duration `yaml:"patience" default:"10s" min:">0"`
}

// DefaultConfig returns a configuration without a listen address.
func DefaultConfig() Config { return config.Defaults[Config]() }

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

// Validate reports every violation.
func (c *Config) Validate() error {
	_, err := c.compile()
	return err
}

// compile returns the template of categories.
func (c *Config) compile() (t inputs.CategoryTemplate, err error) {
	v := inputs.CheckConfig("otlp", c.Name, c)
	if t, err = inputs.ParseCategoryTemplate(c.Category, fieldService, fieldNamespace, fieldSeverity); err != nil {
		v.Add("Category", "%w", err)
	}
	if record.ValidateCategory(c.Fallback) != nil {
		v.Add("Fallback", "invalid value %q: want the name of a category", c.Fallback)
	}
	return t, v.Err()
}
