// Package resume shows that a consumer which dies goes on exactly where it was: a real process that is killed at random while writers run,
// streams that are sent away all the time, and categories with one order for all.
package resume
