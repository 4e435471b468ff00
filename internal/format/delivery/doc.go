// Package delivery is the format of the category [Category], in which a cell keeps how complete its categories are, and the arithmetic of it.
// docs/format/delivery.md is the reference.
//
// Whoever passes messages on counts them by category, producer and minute in a [Ledger]: the producer library, an agent, a reader. A frame is of
// one minute, that of its base time, so counting looks at no message. The ledger makes [Row] values of what it has counted since the last time,
// in frames that are sent unchanged until they are known to be stored: a row that was stored twice has the same id twice. An [Account] adds rows
// up, each id once, and says by host and minute what was produced, what became of it, and where the rest is.
package delivery
