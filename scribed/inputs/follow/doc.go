// Package follow is the agent's input for files: it follows those that globs match, as they grow, are rotated and cut, and gives each
// line to the agent as a message.
//
// # What is promised
//
// A line is delivered at least once, and the lines of a file in their order. The position of a file moves when the agent holds what
// is before it, and positions are saved every second, when a file is seen first, and at the end: after a crash the lines of the last
// second are delivered again.
//
// # How a file is known
//
// By device and number, and by prints: hashes of its first bytes and of those before the position. So
//
//   - a file that was renamed is read to its end under its old category, also when that happened while the agent was down and no glob
//     matches the new name: its folder is searched;
//   - a new file under the old name is read from its beginning, whatever number it has;
//   - a file that was cut (copytruncate), or overwritten in place, is read from its beginning again, and its copy, when a glob matches
//     that, from where the original had been read to. A copy is recognised when the position was past Fingerprint bytes and its name
//     begins with the original's.
//
// # Where lines are lost
//
//   - copytruncate loses what is written between the copy and the cut, and, when no glob matches the copy, what was not read before
//     the cut. Rotation by renaming loses nothing.
//   - A file that is removed while the agent is down, or before it has been opened, is lost with what was not read, and so is one that
//     is renamed before it was ever seen, to a name that no glob matches. Globs that match the rotated names as well lose nothing.
//   - A file that is cut and then grows beyond the position with the same bytes before it, between two looks, is not recognised.
//   - A file that is removed and created again while the agent is down, with the same number and beginning with the very bytes that
//     were read, is taken for the old one.
//   - Lines over max_line are split, truncated or dropped, and counted.
//   - What the agent refuses for good is counted as dropped.
//
// A last line without its end is delivered when the file has lost its name and has been silent, not before, and not at shutdown.
//
// # How it works
//
// One goroutine looks every Interval: Step finds files, compares, and reads each in turn into one buffer until nothing is left. A file
// whose category finds no capacity in the agent waits for itself, after one delivery has waited for 30 seconds. The memory is the buffer,
// and some hundred bytes for a file. Compressed files are excluded by default.
package follow
