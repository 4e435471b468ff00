package config

import (
	"encoding"
	"errors"
	"fmt"
	"iter"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"scribe/internal/base/units"
)

// Setting is a field of a configuration.
type Setting struct {
	// Field is the path of the Go field: "Queue.Least", "Rules[0].MaxAge".
	Field string
	// Name is the path in YAML, "" for what users can't set: "read_proxy.queue_least".
	Name string

	tag    reflect.StructTag
	value  reflect.Value
	parent reflect.Value // the struct
}

// Defaults returns a configuration in which every field has its default. Pointers are nil.
func Defaults[T any]() (c T) {
	setDefaults(reflect.ValueOf(&c).Elem())
	return c
}

func setDefaults(v reflect.Value) {
	for s := range walk(v, "", "") {
		if text := s.tag.Get("default"); text != "" {
			if err := s.setText(text); err != nil {
				panic(fmt.Sprintf("config: default of %v.%s: %v", v.Type(), s.Field, err))
			}
		}
	}
}

// Settings yields the fields of the struct that c points to, and of nested structs, including those in lists and behind pointers.
func Settings(c any) iter.Seq[Setting] { return walk(reflect.ValueOf(c).Elem(), "", "") }

// unnamed is the YAML name of a struct without one: only absolute names count in it.
const unnamed = "-"

func walk(v reflect.Value, field, name string) iter.Seq[Setting] {
	return func(yield func(Setting) bool) { walkStruct(v, field, name, nil, yield) }
}

// walkStruct yields the fields of a struct, and of the sections and elements of lists in it that enter does not refuse; nil refuses none.
func walkStruct(v reflect.Value, field, name string, enter func(section reflect.Value, s Setting, path string) bool, yield func(Setting) bool) bool {
	for i := range v.NumField() {
		f := v.Type().Field(i)
		if !f.IsExported() {
			continue
		}
		s := Setting{Field: join(field, f.Name), Name: childName(name, f.Tag.Get("yaml")), tag: f.Tag, value: v.Field(i), parent: v}
		if f.Anonymous {
			if !walkStruct(s.value, field, name, enter, yield) {
				return false
			}
			continue
		}
		if inner, ok := s.section(); ok {
			if (enter == nil || enter(inner, s, s.Field)) && !walkStruct(inner, s.Field, sectionName(name, f.Tag.Get("yaml")), enter, yield) {
				return false
			}
			continue
		}
		if !yield(s) {
			return false
		}
		if s.value.Kind() != reflect.Slice || s.value.Type().Elem().Kind() != reflect.Struct {
			continue
		}
		for i := range s.value.Len() {
			element, place := s.value.Index(i), fmt.Sprintf("[%d]", i)
			if (enter == nil || enter(element, s, s.Field+place)) && !walkStruct(element, s.Field+place, s.Name+place, enter, yield) {
				return false
			}
		}
	}
	return true
}

// section returns the struct that the field is, or points to if it has a YAML name.
func (s *Setting) section() (reflect.Value, bool) {
	v := s.value
	if v.Kind() == reflect.Pointer && !v.IsNil() && s.tag.Get("yaml") != "" {
		v = v.Elem()
	}
	_, isText := reflect.TypeAssert[encoding.TextUnmarshaler](v.Addr())
	return v, v.Kind() == reflect.Struct && !isText
}

func join(path, name string) string {
	if path == "" || name == "" {
		return path + name
	}
	return path + "." + name
}

// sectionName is the prefix of the names in a struct whose field has the tag.
func sectionName(parent, tag string) string {
	switch tag {
	case "":
		return unnamed
	case ",inline":
		return parent
	default:
		return childName(parent, tag)
	}
}

func childName(parent, name string) string {
	if absolute, ok := strings.CutPrefix(name, "/"); ok {
		return absolute
	}
	if name == "" || parent == unnamed {
		return ""
	}
	return join(parent, name)
}

// Flag returns the setting's flag for a command. ok reports whether it has one.
func (s Setting) Flag(command string) (name string, ok bool) {
	names := strings.Split(s.tag.Get("flag"), ",")
	if len(names) == 1 {
		names = append(names, "up", "serve")
	}
	if !slices.Contains(names[1:], command) {
		return "", false
	}
	return names[0], names[0] != ""
}

// FlagName returns the setting's flag name; "" if it has none.
func (s Setting) FlagName() string {
	name, _, _ := strings.Cut(s.tag.Get("flag"), ",")
	return name
}

// Help returns the help text of the flag.
func (s Setting) Help() string { return s.tag.Get("help") }

// Copy sets the setting to the value of another setting of the same type.
func (s Setting) Copy(from Setting) { s.value.Set(from.value) }

// Set parses text and sets the value.
func (s Setting) Set(text string) error { return s.setText(text) }

// String formats the value so that Set can parse it.
func (s Setting) String() string { return s.text(s.value) }

// Type returns the name of the value's type for help texts.
func (s Setting) Type() string {
	t := s.value.Type()
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch {
	case t == durationType || t == reflect.TypeFor[units.Duration]():
		return "duration"
	case s.isSize() || t == reflect.TypeFor[units.Bytes]():
		return "size"
	case t.Kind() == reflect.Slice:
		return "strings"
	default:
		return t.Kind().String()
	}
}

var durationType = reflect.TypeFor[time.Duration]()

// isSize reports whether the setting is a number of bytes: its default or a bound is written with a unit.
func (s *Setting) isSize() bool {
	t := s.value.Type()
	if t == durationType || t.Kind() < reflect.Int || t.Kind() > reflect.Float64 {
		return false
	}
	for _, key := range []string{"default", "min", "max"} {
		text := s.tag.Get(key)
		if text != "" && unicode.IsDigit(rune(text[0])) && strings.ContainsAny(text, "Bb") {
			return true
		}
	}
	return false
}

// text formats a value of the setting's type.
func (s *Setting) text(v reflect.Value) string {
	if v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return ""
		}
		v = v.Elem()
	}
	switch {
	case v.Type() == durationType:
		return units.Duration(v.Int()).String()
	case s.isSize() && v.CanInt():
		return units.Bytes(v.Int()).String()
	case s.isSize() && v.CanFloat():
		return units.Bytes(v.Float()).String()
	case v.CanFloat():
		return strconv.FormatFloat(v.Float(), 'f', -1, 64)
	case v.Kind() == reflect.Slice:
		texts := make([]string, v.Len())
		for i := range texts {
			texts[i] = fmt.Sprint(v.Index(i))
		}
		return strings.Join(texts, ",")
	default:
		return fmt.Sprint(v.Interface())
	}
}

// setText parses the value from text, as in a tag, on the command line or in YAML.
func (s *Setting) setText(text string) error { return s.parse(s.value, text) }

func (s *Setting) parse(v reflect.Value, text string) (err error) {
	if v.Kind() == reflect.Pointer {
		p := reflect.New(v.Type().Elem())
		if err = s.parse(p.Elem(), text); err == nil {
			v.Set(p)
		}
		return err
	}
	if u, ok := reflect.TypeAssert[encoding.TextUnmarshaler](v.Addr()); ok {
		return u.UnmarshalText([]byte(text))
	}
	var b units.Bytes
	switch {
	case v.Type() == durationType:
		var d units.Duration
		d, err = units.ParseDuration(text)
		v.SetInt(int64(d))
	case s.isSize() && v.CanInt():
		b, err = units.ParseBytes(text)
		v.SetInt(int64(b))
	case s.isSize() && v.CanFloat():
		b, err = units.ParseBytes(text)
		v.SetFloat(float64(b))
	default:
		err = parseScalar(v, text)
	}
	return err
}

func parseScalar(v reflect.Value, text string) error {
	switch {
	case v.Kind() == reflect.String:
		v.SetString(text)
	case v.Kind() == reflect.Bool:
		b, err := strconv.ParseBool(text)
		if err != nil {
			return fmt.Errorf("invalid value %q: want true or false", text)
		}
		v.SetBool(b)
	case v.CanInt():
		n, err := strconv.ParseInt(text, 0, v.Type().Bits())
		if err != nil {
			return numberError(text, err)
		}
		v.SetInt(n)
	case v.CanUint():
		n, err := strconv.ParseUint(text, 0, v.Type().Bits())
		if err != nil {
			return numberError(text, err)
		}
		v.SetUint(n)
	case v.CanFloat():
		n, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return fmt.Errorf("invalid value %q: want a number", text)
		}
		v.SetFloat(n)
	case v.Type() == reflect.TypeFor[[]string]():
		var list []string
		for item := range strings.SplitSeq(text, ",") {
			if item = strings.TrimSpace(item); item != "" {
				list = append(list, item)
			}
		}
		v.Set(reflect.ValueOf(list))
	default:
		return fmt.Errorf("invalid value %q: want a %v", text, v.Type())
	}
	return nil
}

func numberError(text string, err error) error {
	if errors.Is(err, strconv.ErrRange) {
		return fmt.Errorf("invalid value %q: it is too large", text)
	}
	return fmt.Errorf("invalid value %q: want a whole number", text)
}
