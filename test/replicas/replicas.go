// Package replicas reads the folders of replicas of the metadata logs that do not run, and compares them.
package replicas

import (
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"scribe/storage/metalog/pebblelog/schema"
)

// Folder is what a replica has on its disk.
type Folder struct {
	// Name is the caller's name for it.
	Name    string
	Applied schema.Applied
	// Content has what all replicas that have applied the same entries have alike.
	Content map[string]string
}

// ReadFolder reads a folder.
func ReadFolder(fs vfs.FS, dir string) (f Folder, err error) {
	db, err := pebble.Open(dir, &pebble.Options{FS: fs, ReadOnly: true, Logger: quietLogger{}})
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	it, err := db.NewIter(nil)
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	f.Content = map[string]string{}
	for ok := it.First(); ok; ok = it.Next() {
		value, err := it.ValueAndErr()
		if err != nil {
			return f, err
		}
		switch key := string(it.Key()); {
		case key == string(schema.MetaKey(schema.MetaApplied)):
			if f.Applied, err = schema.DecodeApplied(it.Key(), value); err != nil {
				return f, err
			}
		case IsReplicated(key):
			f.Content[key] = string(value)
		}
	}
	return f, it.Error()
}

// IsReplicated reports whether all replicas have a key alike: not annotations, and not what a folder says of itself.
func IsReplicated(key string) bool {
	return schema.Kind(key[0]) != schema.KindAnnotation && key != string(schema.MetaKey(schema.MetaFormat)) && key != string(schema.MetaKey(schema.MetaApplied))
}

// CompareContents says how two contents differ, "" if they do not.
func CompareContents(got, want map[string]string) string {
	missing, other, more := 0, 0, 0
	example := ""
	for key, value := range want {
		if v, ok := got[key]; !ok {
			missing++
			example = key
		} else if v != value {
			other++
			example = key
		}
	}
	for key := range got {
		if _, ok := want[key]; !ok {
			more++
			example = key
		}
	}
	if missing+other+more == 0 {
		return ""
	}
	return fmt.Sprintf("%d keys are missing, %d have another value, %d should not be there, %x among them", missing, other, more, example)
}

// quietLogger is for Pebble.
type quietLogger struct{}

// Infof implements pebble.Logger.
func (quietLogger) Infof(string, ...any) {}

// Errorf implements pebble.Logger.
func (quietLogger) Errorf(string, ...any) {}

// Fatalf implements pebble.Logger.
func (quietLogger) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }
