// Package program runs the scribe program for the tests of the whole system: it builds the program once, starts processes, stops, kills
// and pauses them, and reads their metrics, memory and CPU time.
//
//	func TestMain(m *testing.M) { os.Exit(program.Main(m)) }
//
//	up := program.Serve(t, nil, "up", "--data", dir, "--listen", "127.0.0.1:0") // returns when it is ready
//	program.OK(t, stdin, "produce", "access", "--server", up.URL)
//	up.Kill()
//
// Every process ends with the test that started it, at the latest, and on Linux also with the test binary, however that ends. Undo removes
// other things that a test would leave behind. The log of a process goes to the log of a failed test. Only tests may import this package.
package program
