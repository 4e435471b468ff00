package otlp

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
)

// rewriteIDs turns the ids of log records in a decoded OTLP/JSON request from hexadecimal to base64. Only records have them where
// they are looked for; a body or an attribute that has the same name is left alone.
func rewriteIDs(tree any) error {
	for _, rl := range list(tree, "resourceLogs", "resource_logs") {
		for _, sl := range list(rl, "scopeLogs", "scope_logs") {
			for _, r := range list(sl, "logRecords", "log_records") {
				record, ok := r.(map[string]any)
				if !ok {
					continue
				}
				for _, name := range []string{"traceId", "trace_id", "spanId", "span_id"} {
					text, ok := record[name].(string)
					if !ok {
						continue
					}
					id, err := hex.DecodeString(text)
					if err != nil {
						return fmt.Errorf("%s %q is not hexadecimal", name, text)
					}
					record[name] = base64.StdEncoding.EncodeToString(id)
				}
			}
		}
	}
	return nil
}

// list is a field of an object that is an array, under either of its names.
func list(object any, names ...string) []any {
	fields, ok := object.(map[string]any)
	if !ok {
		return nil
	}
	for _, name := range names {
		if l, ok := fields[name].([]any); ok {
			return l
		}
	}
	return nil
}
