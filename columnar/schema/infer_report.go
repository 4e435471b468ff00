package schema

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// Report describes the samples that [Infer] read.
type Report struct {
	// Messages, Rows and Bytes count what was read. Skipped counts rows that could not be read; Why gives the reasons for the first
	// of them.
	Messages, Rows, Bytes, Skipped int64
	Why                            []string
	// Cut is true if the samples exceeded the bounds.
	Cut bool
	// Fields lists the columns, each followed by its nested fields.
	Fields []FieldReport
	// Notes apply to the whole schema.
	Notes []string
}

// FieldReport describes the values of one field.
type FieldReport struct {
	// Name is the field's full name: a.b, a[] for the elements of a list, a{} for the values of a map.
	Name string
	Type string
	// Present counts the values, including nulls. Absent counts the enclosing objects without the field.
	Present, Nulls, Absent int64
	Kinds                  []KindCount
	// Distinct is the number of distinct texts, or -1 if there were too many to count.
	Distinct int
	Example  string
	Notes    []string
}

// KindCount is the number of values of one kind: bool, integer, number, text, object, array.
type KindCount struct {
	Kind  string `json:"kind"`
	Count int64  `json:"count"`
}

// Print writes the report as readable text.
func (r *Report) Print(w io.Writer) error {
	fmt.Fprintf(w, "%d rows in %d messages of %d bytes", r.Rows, r.Messages, r.Bytes)
	if r.Skipped > 0 {
		fmt.Fprintf(w, ", %d rows could not be read", r.Skipped)
	}
	if r.Cut {
		fmt.Fprint(w, "; there is more, which was not read")
	}
	fmt.Fprintln(w)
	for _, why := range r.Why {
		fmt.Fprintln(w, "  "+why)
	}
	for _, note := range r.Notes {
		fmt.Fprintln(w, "  "+note)
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "FIELD\tTYPE\tPRESENT\tNULL\tABSENT\tDISTINCT\tEXAMPLE\tNOTES")
	for i := range r.Fields {
		f := &r.Fields[i]
		distinct := ""
		if f.Distinct > 0 {
			distinct = fmt.Sprint(f.Distinct)
		} else if f.Distinct < 0 {
			distinct = "many"
		}
		typ, _, _ := strings.Cut(f.Type, "<") // the inner fields follow
		fmt.Fprintf(t, "%s\t%s\t%d\t%d\t%d\t%s\t%s\t%s\n", f.Name, typ, f.Present, f.Nulls, f.Absent, distinct, f.Example, strings.Join(f.Notes, "; "))
	}
	return t.Flush()
}
