package metalog

// Known reports whether the shard has stored sequences of the producer.
func (s ProducerState) Known() bool { return s.Next != 0 }

// Continue decides whether run continues s. It returns the state after run and 0, or s itself and the reason for the refusal. The
// run must be valid: First ≤ Last < the largest uint64.
func (s ProducerState) Continue(run Sequence) (ProducerState, SequenceKind) {
	if s.Known() {
		switch {
		case run.Epoch < s.Epoch:
			return s, SequenceStaleEpoch
		case run.Epoch > s.Epoch: // a new epoch may begin anywhere
		case run.First < s.Next:
			return s, SequenceDuplicate
		case run.First > s.Next:
			return s, SequenceGap
		}
	}
	return ProducerState{Producer: run.Producer, Epoch: run.Epoch, Next: run.Last + 1}, 0
}
