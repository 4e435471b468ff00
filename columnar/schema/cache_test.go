package schema_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"scribe/columnar/schema"
)

// Plans are cached by their schema, so callers that parse a text at once must get the same history.
func TestCacheShares(t *testing.T) {
	var text strings.Builder
	text.WriteString(`{"next":2,"versions":[{"version":1,"format":"json","on_error":"null","fields":[{"name":"f","type":"int64"}`)
	for i := range 500 {
		fmt.Fprintf(&text, `,{"name":"f%d","type":"int64"}`, i)
	}
	text.WriteString(`]}]}`)
	c := schema.NewCache(1)
	histories := make([]*schema.History, 8)
	begin := make(chan struct{})
	var callers sync.WaitGroup
	for i := range histories {
		callers.Go(func() {
			<-begin
			var err error
			if histories[i], err = c.History(1, text.String()); err != nil {
				t.Error(err)
			}
		})
	}
	close(begin)
	callers.Wait()
	for _, h := range histories {
		if h != histories[0] {
			t.Error("callers have several histories of one text")
		}
	}
}
