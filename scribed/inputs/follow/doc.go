// Package follow is the agent's input for files. It follows the files that globs match, while they grow, are rotated and
// truncated, and delivers each line to the agent as a message.
//
// # What is promised
//
// A line is delivered at least once, and the lines of a file in order. The position of a file advances when the agent holds the
// lines before it. Positions are saved every second, when a file is first seen, and at the end: after a crash the lines of the
// last second are delivered again.
//
// # How a file is known
//
// A file is identified by device and number, and by fingerprints: hashes of its first bytes and of those before the position. So
//
//   - a renamed file is read to its end under its old category, even if it was renamed while the agent was down and no glob
//     matches the new name: its folder is searched;
//   - a new file under the old name is read from its beginning, whatever number it has;
//   - a file that was truncated (copytruncate), or overwritten in place, is read from its beginning again, and its copy, if a
//     glob matches it, from the original's position. A copy is recognised if the position was past Fingerprint bytes and its name
//     begins with the original's.
//
// # Where lines are lost
//
//   - copytruncate loses the lines written between the copy and the truncation and, if no glob matches the copy, the lines not
//     read before the truncation. Rotation by renaming loses nothing.
//   - The unread lines of a file are lost if it is removed while the agent is down, or before it was opened, or if it is renamed
//     before it was ever seen, to a name that no glob matches. Globs that also match the rotated names lose nothing.
//   - A truncation is not noticed if the file grows beyond the position before the next scan, with the same bytes before it.
//   - If a file is removed and created again while the agent is down, with the same number and beginning with the very bytes that
//     were read, it is taken for the old one.
//   - Lines over max_line are split, truncated or dropped, and counted.
//   - Lines that the agent refuses for good are counted as dropped.
//
// A last line without a line end is delivered once the file has no matching name and has been silent, never at shutdown.
//
// # How it works
//
// One goroutine runs a Step every Interval: it finds files, compares them, and reads each in turn into one buffer until nothing
// is left. A file whose category has no capacity in the agent is delayed alone, after one delivery has waited for 30 seconds. The
// memory is the buffer, and some hundred bytes for each file. Compressed files are excluded by default.
package follow
