// Package config declares a setting once: as a tagged struct field of the role that uses it.
//
//	type Config struct {
//		// MemoryBytes bounds ...
//		MemoryBytes int64 `yaml:"/limits.batch_memory" default:"256MiB" min:"1MiB" max:"1TiB" flag:"batch-memory" help:"most bytes ..."`
//		RetryBase   time.Duration `default:"50ms" min:"1ms" max:"1h"`
//		RetryMax    time.Duration `default:"2s" min:"RetryBase" max:"1h"`
//	}
//
// [Defaults] returns a configuration, [Check] reports every violation in one, [Load] applies a YAML file to one, and [Settings]
// yields its fields, from which the command line makes flags.
//
//   - yaml: the name in the file, below that of the struct it is in; with a leading slash, from the root; ",inline" on a struct adds
//     nothing to the names in it, nor does embedding. Fields with the same name are set together. A field without one is not for users.
//   - default: the value of a new configuration; without one, the zero value.
//   - min, max: inclusive bounds: a value, a field of the same struct, or one of the [Bounds] given to Check. min:">0" is exclusive.
//   - zero:"off": 0 is valid beside what min and max allow.
//   - oneof: the valid values, separated by spaces. required: what is missing when the field is empty.
//   - flag: the name on the command line, and after commas the commands that have it; without these, up and serve. help is its text.
//   - check:"off": Check passes the struct over.
//
// A number is a size in bytes when its default or a bound is written with a unit: "64MiB", "0B". Durations may have days: "72h", "3d".
package config
