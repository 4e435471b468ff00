// Package logthrottle says when a failure that comes again and again is worth a line in the log. Loops that wait for a server that is away try
// again every few seconds, for hours if need be: the first failure is news, and so is, once in a while, that it still holds. The others
// would only push what matters out of the log.
package logthrottle
