package rpc

import (
	"context"
	"net/http"
	"sync"
	"time"
)

// answerMark collects the functions to be called once a request has been answered.
type answerMark struct {
	mu struct {
		sync.Mutex
		fns []func()
	}
}

type answeredKey struct{}

// WhenAnswered arranges that fn is called once the answer to ctx's request has been written, or can no longer be written. Until
// then the handler's result is in memory. It returns false if ctx is not that of a request over a transport; fn is then not
// called, and the caller owns the result.
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

// longestAnswer bounds the handling of a request and the sending of its answer, for services that use WhenAnswered. Without it, a
// client that never reads would hold memory that is kept until the answer was sent.
const longestAnswer = 5 * time.Minute

// telling enables WhenAnswered in the handlers below it.
func telling(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a := new(answerMark)
		defer func() {
			for _, fn := range a.mu.fns { // the handler has returned
				fn()
			}
		}()
		// Bulk answers set a shorter deadline. Some servers have no deadlines, for example those of tests.
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(longestAnswer))
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), answeredKey{}, a)))
	})
}
