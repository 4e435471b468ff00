package request

import "time"

// AnswerBy returns when a hop should answer a request, so that the answer arrives before the caller's deadline: margin earlier, or a
// tenth of the remaining time if that is less.
func AnswerBy(deadline time.Time, margin time.Duration) time.Time {
	return deadline.Add(-min(margin, max(time.Until(deadline), 0)/10))
}
