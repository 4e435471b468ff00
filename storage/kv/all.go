package kv

import (
	"context"
	"iter"
)

// All yields the entries under a prefix by key, page by page. Each page is of one revision; different pages may be of different
// ones. It ends with an error when a page can't be read.
func All(ctx context.Context, s Store, prefix string) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		for after := ""; ; {
			page, err := s.Range(ctx, KeyRange{Prefix: prefix, After: after})
			if err != nil {
				yield(Entry{}, err)
				return
			}
			for _, e := range page.Entries {
				if !yield(e, nil) {
					return
				}
				after = e.Key
			}
			if !page.More {
				return
			}
		}
	}
}
