package rpc

import (
	"context"
	"net/http"
	"sync"
	"time"
)

// answerMark collects what is to be done once a request has been answered.
type answerMark struct {
	mu struct {
		sync.Mutex
		fns []func()
	}
}

type answeredKey struct{}

// WhenAnswered has fn called once the answer to the request that ctx came with has been written, or can't be any more: until then what
// the handler returned is in memory. It is false when ctx did not come with a request over a transport; then fn is not called, and
// what was returned is the caller's.
func WhenAnswered(ctx context.Context, fn func()) bool {
	a, ok := ctx.Value(answeredKey{}).(*answerMark)
	if !ok {
		return false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.mu.fns = append(a.mu.fns, fn)
	return true
}

// longestAnswer is how long the carrying out of a request that tells takes, with its answer on its way, at most: what is held until it
// was sent would else be held by a client that never reads.
const longestAnswer = 5 * time.Minute

// telling lets handlers below it use WhenAnswered.
func telling(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a := new(answerMark)
		defer func() {
			for _, fn := range a.mu.fns { // the handler has returned
				fn()
			}
		}()
		// Bulk answers set a shorter one. Not every server has deadlines, for example one that a test stands in for.
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(longestAnswer))
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), answeredKey{}, a)))
	})
}
