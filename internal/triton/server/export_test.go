package server

import "os"

// FillDisk makes every write fail with err until the returned function is called.
func FillDisk(err error) (restore func()) {
	writeFile = func(string, []byte, os.FileMode) error { return err }
	return func() { writeFile = os.WriteFile }
}
