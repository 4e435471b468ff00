// Package engines keeps the categories of a cell on its metadata engines: which engine creates the logs of a category, its home, and how a category
// comes to another one when engines are added or drained (docs/adr/0072).
//
// [List] is the list of engines, and [Home] where a category is, both as they are stored (docs/format/engines.md). [Planner] decides what to do
// next. It is a state machine: it does no I/O, reads no clock and takes no lock. [Mover] does it, for whoever leads the control planes:
//
//	for {
//		step, wait, ok := planner.Next(now)
//		if !ok { ... wait until something changes }
//		learned, err := mover.Take(ctx, step)
//		switch {
//		case err != nil: planner.Failed(step, now)
//		case learned != nil: planner.Restore(step.Category, *learned)
//		default: planner.Done(step)
//		}
//	}
//
// A process can end at any moment: every step can be taken again, by anybody, and what is stored says which. The engines say the same, so a store
// that was lost is learned from them.
package engines
