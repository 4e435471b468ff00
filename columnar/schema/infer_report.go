package schema

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// Report says what [Infer] saw.
type Report struct {
	// Messages, Rows and Bytes were read; Skipped rows could not be, Why says of the first ones why.
	Messages, Rows, Bytes, Skipped int64
	Why                            []string
	// Cut says that there was more than is read.
	Cut bool
	// Fields are the columns, each followed by what is in it.
	Fields []FieldReport
	// Notes are about the whole schema.
	Notes []string
}

// FieldReport says what was seen of one field.
type FieldReport struct {
	// Name is the field's with those that it is in: a.b, a[] for elements of a list, a{} for values of a map.
	Name string
	Type string
	// Present values there were, nulls included; Absent is how often the object around had none.
	Present, Nulls, Absent int64
	Kinds                  []KindCount
	// Distinct is how many different texts were seen; -1 for too many to count.
	Distinct int
	Example  string
	Notes    []string
}

// KindCount is how many values of a kind there were: bool, integer, number, text, object, array.
type KindCount struct {
	Kind  string `json:"kind"`
	Count int64  `json:"count"`
}

// Print writes the report for people.
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
		typ := f.Type
		if strings.ContainsAny(typ, "<") {
			typ, _, _ = strings.Cut(typ, "<") // what is inside follows
		}
		fmt.Fprintf(t, "%s\t%s\t%d\t%d\t%d\t%s\t%s\t%s\n", f.Name, typ, f.Present, f.Nulls, f.Absent, distinct, f.Example, strings.Join(f.Notes, "; "))
	}
	return t.Flush()
}
