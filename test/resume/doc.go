// Package resume tests that a consumer that dies resumes exactly where it stopped: a real process that is killed at random while writers
// run, streams that are evicted all the time, and categories with one order for all readers.
package resume
