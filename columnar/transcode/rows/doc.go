// Package rows is what the readers of all formats share: the compiled plan of a batch ([Plan]), the writer that collects its rows
// ([Writer]), and the lookup of fields by their paths ([Lookup]).
//
// A reader of a format implements [FrameReader], or [MessageReader] where it looks at messages one by one.
package rows
