// Package rows is shared by the readers of all formats. It has the compiled plan of a batch ([Plan]), the writer that collects
// its rows ([Writer]), and the lookup of fields by their paths ([Lookup]).
//
// A format's reader implements [FrameReader], or [MessageReader] if it reads messages one by one.
package rows
