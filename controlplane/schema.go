package controlplane

import (
	"errors"
	"fmt"
	"strings"

	"scribe/columnar/schema"
	"scribe/controlplane/request"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// newSchema returns the schema that a category keeps. before is its current one, text the request's. Only newSchema counts
// versions, in the transaction that is conditional on the category's revision.
func newSchema(before, text string, force bool) (string, error) {
	if text == before {
		return text, nil
	}
	history, err := schema.ParseHistory(before)
	if err != nil {
		if !force {
			return "", fmt.Errorf("what the category has can't be read, and is only replaced by force (--force-schema): %w", err)
		}
		if history, err = schema.ParseHistory(""); err != nil {
			return "", err
		}
	}
	if text == "" || text == schemaInfer {
		if newest := history.Latest(); newest != nil && !force {
			return "", fmt.Errorf("the category has version %d, and queries that use its columns would end: versions are only removed by force (--force-schema)", newest.Version)
		}
		history.Clear(text == schemaInfer)
		return history.Marshal(), nil
	}
	if schema.IsHistory(text) {
		return copiedSchema(before, text)
	}
	s, err := schema.Parse([]byte(text))
	if err != nil {
		return "", err
	}
	if added, _, err := history.Append(s, force); err != nil || !added {
		return before, err
	}
	return history.Marshal(), nil
}

// copiedSchema copies all versions of another category.
func copiedSchema(before, text string) (string, error) {
	if before != "" && before != schemaInfer {
		return "", errors.New("all versions together can only be given to a category that has had none: give one schema")
	}
	history, err := schema.ParseHistory(text)
	if err != nil {
		return "", err
	}
	return history.Marshal(), nil
}

// addSchemaError adds the problems of a schema to the violations of a request.
func addSchemaError(v *request.Violations, err error) {
	if err == nil {
		return
	}
	text := err.Error()
	if strings.Contains(text, "\n") {
		text = "\n  " + strings.ReplaceAll(text, "\n", "\n  ")
	}
	v.Add("schema", "%s", text)
}

// categoryError returns the error for the violations of a category. The problems of an invalid schema are attached to it.
func categoryError(what string, v request.Violations, schemaErr error) error {
	err := v.Err(what)
	if err == nil || schemaErr == nil {
		return err
	}
	info := &scribev1.ErrorInfo{Reason: scribev1.Reason_REASON_INVALID}
	problems := new(schema.Error)
	incompatible := new(schema.IncompatibleError)
	switch {
	case errors.As(schemaErr, &problems):
		for _, p := range problems.Problems {
			info.SchemaProblems = append(info.SchemaProblems, &scribev1.SchemaProblem{
				Line: uint32(p.Line), Column: uint32(p.Column), Where: p.Where, Message: p.Message, Hint: p.Hint, //nolint:gosec // places in a text of a megabyte
			})
		}
	case errors.As(schemaErr, &incompatible):
		if len(v) == 1 {
			info.Reason = scribev1.Reason_REASON_INCOMPATIBLE_SCHEMA
		}
		for _, c := range incompatible.Changes[:min(len(incompatible.Changes), 50)] {
			info.SchemaProblems = append(info.SchemaProblems, &scribev1.SchemaProblem{Where: c.Field, Message: c.Text, Hint: c.Hint})
		}
	}
	return rpc.InfoError(info, fmt.Errorf("%s: %s", what, v))
}
